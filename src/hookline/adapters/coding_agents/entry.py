"""The program that the settings of a coding agent start: ``python -I -S entry.py agent-hook --agent codex rules.py``.

In this way, Python starts without the packages of the installation, which takes a fraction of the time. With them, this
is the program ``hookline``, whose failure denies too: agents run a call if a hook ends with another exit code than 2.
"""

import sys

if __name__ == "__main__":
    try:
        if sys.flags.no_site:
            sys.path.insert(0, __file__.rpartition("/coding_agents/")[0])
            from coding_agents.client import main  # type: ignore[import-not-found]

            main(sys.argv[2:])
        else:
            from importlib import import_module

            sys.argv[0] = "hookline"
            import_module("hookline.cli.main").main()
    except SystemExit as end:
        sys.exit(2 if end.code else 0)
    except BaseException as error:  # noqa: BLE001 - whatever is broken, the call must not run because of it
        try:
            sys.stderr.write(f"Hookline: the hooks cannot be started ({type(error).__name__}: {error}).\n")
        finally:  # stderr may be closed
            sys.exit(2)
