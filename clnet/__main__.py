"""``python -m clnet``: the command line."""

import sys

from clnet.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
