"""One operator at one database: the way there, what is allowed, what is under way."""
