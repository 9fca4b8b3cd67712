"""`python -m runner` runs the same command line as the program `runner`."""

import sys

from runner.cli import main

if __name__ == "__main__":
    sys.exit(main())
