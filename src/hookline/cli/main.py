"""Entry point of the program ``hookline``."""

from __future__ import annotations

import codecs
import io
import os
import sys

from . import startup

_PLAIN = {"·": "-", "…": "...", "→": "->", "↳": "->", "µ": "u", "\u00d7": "x", "“": '"', "”": '"'}
"""What a terminal without Unicode shows in place of the program's own punctuation."""


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Replace what cannot be encoded: punctuation by its like in ASCII, and other characters by their numbers."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    shown = (_PLAIN.get(each) or each.encode("ascii", "backslashreplace").decode() for each in missing)
    return "".join(shown), error.end


def main() -> None:
    """Run the program with the arguments of this process, then exit."""
    if sys.argv[1:2] == ["agent-hook"]:
        # A coding agent runs this command for every tool call, so it must not wait for the imports of the others.
        from ..adapters.coding_agents import command, options

        given = options.parse(sys.argv[2:])
        if given is not None:
            sys.exit(command.run(given))
    startup.begin()
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
    from .errors import CANCELLED, OUTPUT_CLOSED, OutputClosedError, report_error

    codecs.register_error("hookline-plain", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="hookline-plain")  # a reply may have characters that the terminal lacks
    args = sys.argv[1:]
    try:
        from .app import run_app

        code = run_app(args)
        sys.stdout.flush()
    except (BrokenPipeError, OutputClosedError):
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # otherwise Python reports the closed pipe at exit
        code = OUTPUT_CLOSED
    except KeyboardInterrupt:
        code = CANCELLED
    except Exception as error:  # noqa: BLE001 - users get a message, not a traceback
        code = report_error(error, args)
    sys.exit(code)
