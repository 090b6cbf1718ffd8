"""``hookline run``: one task, from start to end."""

from __future__ import annotations

import os
import stat
import sys
import threading
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from .._kernel.errors import HooklineError
from ..config.sources import Configuration
from .errors import BAD_INPUT, EXIT_CODES, ReaderGone, exit_code, quiet_logs, say_failure, say_note
from .help import Command
from .options import takes_settings
from .text import printable, summary, wrapped

if TYPE_CHECKING:
    from .._kernel.events import Event
    from .._run.cancellation import Interrupt
    from .._run.events import Sink

EPILOG = """
Examples:
  hookline run "What is in this folder?"
  hookline run "Fix the typos in notes.txt" --write --max-steps 8
  git diff | hookline run "Review this" --hooks rules.py -m openai:gpt-5-mini
  hookline run "Tidy up" --json | jq .type

The reply goes to stdout, everything else to stderr. A limit may be "none".

Exit codes:
""" + "\n".join(f"  {code:<5}{meaning}" for code, meaning in EXIT_CODES.items())

PATIENCE = 2.0
"""Seconds after which a pipe that stays open is mentioned."""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run", cls=Command, epilog=EPILOG)(takes_settings()(run))


def run(
    config: Configuration,
    task: Annotated[
        list[str] | None,
        typer.Argument(metavar="TASK", help="What to do. A text piped in follows it.", show_default=False),
    ] = None,
    session: Annotated[
        str | None, typer.Option(metavar="NAME", help="Go on with this session, and save it.", show_default=False)
    ] = None,
    tape: Annotated[
        str | None,
        typer.Option(metavar="FILE.tape", help="Record the run on a tape, for hookline replay.", show_default=False),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Events on stdout, one JSON object a line.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Nothing but the reply.")] = False,
) -> int:
    """Run an agent on one task."""
    from ..config.build import build_plugins, context
    from ..tape.recording import TapeHook
    from .approval_prompt import Approver
    from .plugins import close_plugins
    from .runner import answering, opened, perform_all, recorded, recorder, saved, together
    from .views import choose_view
    from .weights import make_ready

    settings = config.settings
    quiet_logs(settings.debug)
    text = task_text(task or [])
    view = choose_view(silent=quiet or json)
    recorders, plugins = recorder(settings), build_plugins(settings, config.home)
    conversation = opened(settings, session)
    ctx = context(settings, conversation)
    approver = Approver(settings.approvals, view.paused, settings.approval_file)
    tapes = [TapeHook(tape)] if tape else []
    lines = JsonLines(ctx.interrupt) if json else None
    try:
        answerer, agent = answering(config, [approver, *recorders, *tapes], ctx.session, plugins)
        make_ready(agent.model)
        with view:
            sinks: list[Sink] = [view, lines] if lines is not None else [view]
            outcome = together(list(perform_all(answerer, text, ctx, sinks, settings.metadata)))
    finally:
        close_plugins(plugins)
    result = outcome.result
    if lines is None:
        show_reply(result.output_text)
    if outcome.failure is not None:
        say_failure(outcome.failure, debug=settings.debug)
    if not (quiet or json):
        sys.stderr.write(f"{wrapped(summary(result, outcome.broken, outcome.within), sys.stderr)}\n")
    for error in result.errors if quiet and not json else ():
        if error.where == "hook" and not error.fatal:  # such as a log that could not be written: it would be missed
            say_note(error.message)
    code = exit_code(result, outcome.failure)
    recorded(recorders)
    try:
        saved(settings, session, conversation)
    except HooklineError as error:
        say_failure(error, debug=settings.debug)
        code = code or BAD_INPUT  # how the run itself ended matters more
    if lines is not None and lines.unread:
        raise ReaderGone
    return code


def task_text(words: list[str]) -> str:
    """The task: the words given, then the text piped in.

    Raises:
        HooklineError: there is neither.
    """
    task = "\n\n".join(part for part in (" ".join(words).strip(), piped_text()) if part)
    if not task:
        raise HooklineError('there is no task: hookline run "TASK", or pipe a text into it')
    return task


def piped_text() -> str:
    """What a pipe or a file gives on stdin, if it is one."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # there is no stdin
        return ""
    if not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)):
        return ""
    reminder = threading.Timer(PATIENCE, _say_reading)
    reminder.daemon = True
    reminder.start()
    try:
        return sys.stdin.buffer.read().decode(errors="replace").strip()
    finally:
        reminder.cancel()


def _say_reading() -> None:
    sys.stderr.write("reading stdin until it ends; to give nothing there: < /dev/null\n")
    sys.stderr.flush()


def show_reply(reply: str) -> None:
    """The reply on stdout; a terminal gets no control characters."""
    if reply:
        sys.stdout.write(f"{printable(reply) if sys.stdout.isatty() else reply}\n")
        sys.stdout.flush()


class JsonLines:
    """A sink that writes each event as a line of JSON to stdout; when nobody reads it any more, it interrupts."""

    def __init__(self, interrupt: Interrupt) -> None:
        self._interrupt = interrupt
        self.unread = False

    def __call__(self, event: Event) -> None:
        """Write one event."""
        if not self.unread:
            try:
                sys.stdout.buffer.write(msgspec.json.encode(event.payload) + b"\n")
                sys.stdout.buffer.flush()
            except BrokenPipeError:
                self.unread = True
                self._interrupt.cancel("nobody reads the events")
