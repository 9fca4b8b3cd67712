"""External executors: workers of other engines, such as Dask or loky, that run the handlers of a runner."""
