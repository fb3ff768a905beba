"""``python -m clnet``: the command line."""

import sys

from clnet.cli import main

if __name__ == "__main__":
    sys.exit(main())
