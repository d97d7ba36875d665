"""`python -m rekindle`: the command line."""

import sys

from rekindle.tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
