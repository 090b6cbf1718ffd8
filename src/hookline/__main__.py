"""``python -m hookline``."""

import os
import sys

if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:
    del sys.path[0]  # a file named like a library, in a folder that someone else wrote, must not run in its place

from .cli.main import main

if __name__ == "__main__":
    main()
