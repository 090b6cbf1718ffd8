"""``python -m hookline``."""

import sys

if __name__ == "__main__":
    # ``python -m`` would search the working folder for modules, before all others. An agent may write files there.
    sys.path[:] = sys.path[1:] if not sys.flags.safe_path else sys.path
    from .cli.main import main

    main()
