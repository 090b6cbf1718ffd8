"""The program ``hookline``."""

from __future__ import annotations

import io
import os
import sys


def main() -> None:
    """Run the program with the arguments of this process, and exit."""
    try:
        import typer  # noqa: F401
    except ImportError:
        from .._base.errors import install_command
        from .._base.package import __version__

        if sys.argv[1:] == ["--version"]:
            sys.stdout.write(f"hookline {__version__}\n")
            sys.exit(0)
        sys.stderr.write(f"error: the command line needs typer and rich: {install_command('cli')}\n")
        sys.exit(2)
    from .errors import CANCELLED, UNREAD, ReaderGone, report

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a model may say what this terminal cannot
    args = sys.argv[1:]
    try:
        from .app import run_app

        code = run_app(args)
        sys.stdout.flush()
    except (BrokenPipeError, ReaderGone):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to complain at exit
        code = UNREAD
    except KeyboardInterrupt:
        code = CANCELLED
    except Exception as error:  # noqa: BLE001 - people get a sentence, not a traceback
        code = report(error, args)
    sys.exit(code)
