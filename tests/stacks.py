"""What a process of a test is doing: its log, and on SIGUSR1 the stacks of its threads and asyncio tasks in it."""

import asyncio
import faulthandler
import logging
import signal
import sys
from types import FrameType


def log_with_times() -> None:
    """Log to the standard error output, with the times at which processes did something."""
    logging.basicConfig(format="%(asctime)s %(process)d %(name)s %(levelname)s %(message)s", level=logging.INFO)
    logging.getLogger("procrastinate").setLevel(logging.WARNING)


def write_stacks_on_signal() -> None:
    """Write all stacks to the standard error output whenever this process gets SIGUSR1."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, lambda: print(tasks_text(), file=sys.stderr, flush=True))
    # The threads are written at once, so that they are known even if the loop is blocked.
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=True)


def tasks_text() -> str:
    """Return the tasks of the running loop, each with the places where it awaits."""
    parts = [f"--- {len(asyncio.all_tasks())} tasks"]
    for task in sorted(asyncio.all_tasks(), key=lambda each: each.get_name()):
        parts.append(f"task {task.get_name()}")
        awaited: object = task.get_coro()
        while awaited is not None:
            frame = _frame_of(awaited)
            parts.append(f"    {_place(frame)}" if frame is not None else f"    awaits {awaited!r:.200}")
            awaited = _next_of(awaited)
    return "\n".join(parts)


def _frame_of(awaited: object) -> FrameType | None:
    for name in ("cr_frame", "gi_frame", "ag_frame"):
        if (frame := getattr(awaited, name, None)) is not None:
            return frame
    return None


def _next_of(awaited: object) -> object:
    for name in ("cr_await", "gi_yieldfrom", "ag_await"):
        if hasattr(awaited, name):
            return getattr(awaited, name)
    return None


def _place(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_filename}:{frame.f_lineno} {code.co_qualname}"
