"""`python -m tasktui`."""

import sys

from tasktui.app import main

sys.exit(main())
