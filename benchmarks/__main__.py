"""``python -m benchmarks``: the same as ``clnet bench``."""

import sys

from clnet.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["bench", *sys.argv[1:]]))
