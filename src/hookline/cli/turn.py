"""One run from the command line, with Ctrl-C: once cancels, twice kills."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from ..base.event import Event
from ..base.frozen import EMPTY
from ..kernel.records import HookExecuted
from ..kernel.state import AgentResult
from ..run.agent import Agent
from ..run.causes import RunFailed
from ..run.context import AgentContext
from ..run.events import Sink
from ..run.handle import Run
from .exits import CANCELLED, FAILED
from .failures import say_error


class Outcome(msgspec.Struct, frozen=True):
    """How a run ended, what it failed of, and the names of the hooks that failed."""

    result: AgentResult
    failure: RunFailed | None = None
    broken: Collection[str] = ()


def perform(
    agent: Agent, task: str, ctx: AgentContext, sinks: Sequence[Sink], metadata: Mapping[str, Any] = EMPTY
) -> Outcome:
    """Run to the end, whatever the end is."""
    broken: set[str] = set()

    def note(event: Event) -> None:
        if isinstance(event, HookExecuted) and event.error is not None:
            broken.add(event.hook)

    run = agent.start(task, ctx=ctx, sinks=[*sinks, note], metadata=metadata)
    with _interruptible(run):
        try:
            return Outcome(run.wait(), broken=broken)
        except RunFailed as failed:
            return Outcome(failed.result, failed, broken)
        except SystemExit as left:  # a hook's; silence and exit code 0 would look like success
            place = traceback.extract_tb(left.__traceback__)[-1]
            say_error(f"{place.name} at {place.filename}:{place.lineno} exited the program in the middle of a run")
            raise SystemExit(FAILED) from left


@contextmanager
def _interruptible(run: Run) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # signals belong to the main thread
        return
    pressed = False

    def interrupt(*_: object) -> None:
        nonlocal pressed
        if pressed:
            if sys.stderr.isatty():
                os.write(2, b"\x1b[?25h\n")  # a live view may have hidden the cursor
            os._exit(CANCELLED)
        pressed = True
        run.cancel("Ctrl-C")

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
