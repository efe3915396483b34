"""`python -m cutlass_py`: the command line (commands/)."""

import sys

from .commands import main

if __name__ == "__main__":
    sys.exit(main())
