"""``hookline run``: run an agent on one task."""

from __future__ import annotations

import math
import os
import stat
import sys
import threading
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from .._kernel.errors import HooklineError
from ..config.settings import KEYS
from ..config.sources import Configuration
from . import startup
from .errors import (
    BAD_INPUT,
    CANCELLED,
    EXIT_CODES,
    WAITING,
    OutputClosedError,
    exit_code,
    print_failure,
    print_note,
    set_up_logging,
)
from .help import Command
from .options import with_settings
from .text import run_summary, wrap_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._base.attachment import Attachment
    from .._kernel.events import Event
    from .._run.events import Sink
    from .._run.run import Run
    from .._run.session import Session
    from ..stores.runs import RunStore

EPILOG = """
Examples:
  hookline run "What is in this folder?"
  hookline run "Fix the typos in notes.txt" --write --max-steps 8
  git diff | hookline run "Review this" --hooks rules.py -m openai:gpt-5-mini
  hookline run "What is this?" --attach photo.jpg -m openai:gpt-5-mini
  hookline run "Tidy up" --json | jq .type
  hookline run "Pay the invoices" --durable --wait

The reply goes to stdout, everything else to stderr. A limit may be "none".

Exit codes:
""" + "\n".join(f"  {code:<5}{meaning}" for code, meaning in EXIT_CODES.items())

NOT_STORED = frozenset(("database", "debug", "runs"))
"""Settings that are not stored with a durable run: they say where it is, or how this command shows it."""
STDIN_NOTICE_SECONDS = 2.0
"""Seconds after which a notice says that stdin is still open."""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run", cls=Command, epilog=EPILOG)(with_settings()(run))


def run(
    config: Configuration,
    task: Annotated[
        list[str] | None,
        typer.Argument(metavar="TASK", help="The task. Text from stdin is appended.", show_default=False),
    ] = None,
    session: Annotated[
        str | None, typer.Option(metavar="NAME", help="Continue this session, and save it.", show_default=False)
    ] = None,
    attach: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Attach an image, a PDF or another file, or a URL.", show_default=False),
    ] = None,
    tape: Annotated[
        str | None,
        typer.Option(metavar="FILE.tape", help="Record the run for hookline replay.", show_default=False),
    ] = None,
    durable: Annotated[
        bool, typer.Option("--durable", help="Keep a journal, so that hookline runs resume can continue the run.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print events to stdout as JSON lines.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the reply.")] = False,
) -> int:
    """Run an agent on one task."""
    from .._base.attachment import Attachment
    from .runner import load_session

    text = task_text(task or [])
    files = [Attachment.of(each, max_size=config.settings.max_attachment) for each in attach or ()]
    job = RunJob(text, files, load_session(config.settings, session), session, tape=tape)
    if durable:
        job.store = open_journals(config)
        job.store.begun_with = options_to_store(config)
    return execute(config, job, json=json, quiet=quiet)


class RunJob(msgspec.Struct):
    """What an agent is to do: a task in a session. With a ``store``, its run is durable."""

    task: str
    attachments: Sequence[Attachment] = ()
    conversation: Session | None = None
    session: str | None = None
    tape: str | None = None
    store: RunStore | None = None
    run_id: str | None = None


def open_journals(config: Configuration) -> RunStore:
    """Open the store of durable runs.

    Raises:
        ConfigError: the settings name no file for runs.
    """
    from ..config.errors import ConfigError
    from ..stores.runs import RunStore

    if config.settings.runs is None:
        raise ConfigError("a durable run needs a file for its journal: set runs, or give --runs runs.db")
    return RunStore(config.settings.runs)


def options_to_store(config: Configuration) -> dict[str, Any] | None:
    """Return the settings on the command line, for the command that resumes the run, without those with secrets."""
    from ..config.secrets import mask

    kept: dict[str, Any] = {}
    for key, value in config.given.items():
        plain = msgspec.to_builtins(value)
        if key in NOT_STORED:
            continue
        if mask(value, key) != (list(plain) if isinstance(plain, tuple) else plain):
            print_note(
                f"{KEYS[key].about.flag} is not stored with the run, because it looks like a secret: give it again to "
                "hookline runs resume"
            )
        else:
            kept[key] = "none" if value in (None, math.inf) else plain
    return kept or None


def execute(config: Configuration, job: RunJob, *, json: bool = False, quiet: bool = False) -> int:
    """Run the agent of the settings, show what happens, and return the exit code."""
    from .._run.environment import make_id
    from .._run.journal import RunHaltedError, RunSuspendedError, RunWaitingError
    from ..config.factory import approval_policy, build_plugins
    from .approval_prompt import Approver
    from .output import print_reply
    from .plugins import close_plugins
    from .runner import (
        combine,
        finish_audit,
        finish_recording,
        make_terminal_context,
        prepare_agent,
        run_with_handovers,
        save_session,
        start_recording,
    )
    from .views import choose_view
    from .weights import prepare_model

    settings = config.settings
    set_up_logging(settings.debug)
    view = choose_view(silent=quiet or json)
    recorders, plugins = start_recording(settings), build_plugins(settings, config.home)
    ctx = make_terminal_context(settings, config.home, job.conversation)
    approver = Approver(settings.approvals, view.paused, settings.approval_file, approval_policy(settings))
    view.prompts = approver.prompts
    tapes = [_tape_hook(job.tape)] if job.tape else []
    lines = JsonLines() if json else None
    try:
        answerer, agent = prepare_agent(config, [approver, *recorders, *tapes], ctx.session, plugins)
        prepare_model(agent.model)
        if job.store is not None and job.run_id is None:
            job.store.journal.states()  # says what is wrong with the store before the note
            job.run_id = make_id("run")
            if not (quiet or json):
                print_note(f"durable: hookline runs resume {job.run_id} continues this run if it is interrupted")
        startup.finish()
        with view:
            sinks: list[Sink] = [view, lines] if lines is not None else [view]
            runs = run_with_handovers(
                answerer, job.task, ctx, sinks, settings.metadata, job.attachments, job.store, job.run_id
            )
            outcome = combine(list(runs))
    except (RunWaitingError, RunSuspendedError) as suspended:
        finish_recording(recorders)
        if lines is not None and lines.is_closed:
            raise OutputClosedError from suspended
        if isinstance(suspended, (RunHaltedError, RunWaitingError)):
            print_note(f"{suspended}: hookline runs resume {suspended.run_id}")
            return WAITING
        print_note(f"interrupted: hookline runs resume {suspended.run_id} continues the run")
        return CANCELLED
    finally:
        close_plugins(plugins)
    result = outcome.result
    if lines is None:
        print_reply(result.output_text)
    if outcome.failure is not None:
        print_failure(outcome.failure, debug=settings.debug)
    if not (quiet or json):
        sys.stderr.write(f"{wrap_line(run_summary(result, outcome.failed_hooks, outcome.subagents), sys.stderr)}\n")
    elif not json and result.status == "stopped" and result.stop is not None:
        print_note(f"stopped: {result.stop.message or result.stop.kind}")
    for error in result.errors if quiet and not json else ():
        if error.where == "hook" and not error.fatal:  # such as an audit log that could not be written
            print_note(error.message)
    code = exit_code(result, outcome.failure)
    finish_audit(answerer)
    finish_recording(recorders)
    try:
        save_session(settings, job.session, job.conversation)
    except HooklineError as error:
        print_failure(error, debug=settings.debug)
        code = code or BAD_INPUT  # the status of the run itself takes precedence
    if lines is not None and lines.is_closed:
        raise OutputClosedError
    return code


def _tape_hook(path: str) -> Any:
    from ..tape.recording import TapeHook  # imports much that other runs do not need

    return TapeHook(path)


def task_text(words: list[str]) -> str:
    """Return the task: the given words, then the text from stdin.

    Raises:
        HooklineError: both are empty.
    """
    task = "\n\n".join(part for part in (" ".join(words).strip(), piped_text()) if part)
    if not task:
        raise HooklineError('the task is missing: hookline run "TASK", or pipe it to stdin')
    return task


def piped_text() -> str:
    """Return the text on stdin if that is a pipe or a file."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # stdin is closed
        return ""
    if not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)):
        return ""
    reminder = threading.Timer(STDIN_NOTICE_SECONDS, _print_stdin_notice)
    reminder.daemon = True
    reminder.start()
    try:
        return sys.stdin.buffer.read().decode(errors="replace").strip()
    finally:
        reminder.cancel()


def _print_stdin_notice() -> None:
    sys.stderr.write("still reading stdin; if you have no input for it, add: < /dev/null\n")
    sys.stderr.flush()


class JsonLines:
    """An event sink that prints each event as a JSON line, and interrupts the run if the reader closes the pipe."""

    def __init__(self) -> None:
        self._run: Run[Any] | None = None
        self.is_closed = False

    def attach(self, run: Run[Any]) -> None:
        """Set the run whose events these are."""
        self._run = run
        if self.is_closed:
            self._interrupt()

    def __call__(self, event: Event) -> None:
        """Write one event."""
        if not self.is_closed:
            try:
                sys.stdout.buffer.write(msgspec.json.encode(event.payload) + b"\n")
                sys.stdout.buffer.flush()
            except BrokenPipeError:
                self.is_closed = True
                self._interrupt()

    def _interrupt(self) -> None:
        if self._run is not None:
            self._run.suspend("the reader of the events closed the pipe")
