"""The errors of hooks, runs and models."""

from __future__ import annotations

import os
from typing import Any

from .._base.errors import HooklineError as HooklineError  # noqa: PLC0414 - exported with them
from .._base.text import describe


class RegistrationError(HooklineError, ValueError):
    """A hook, tool, point or option cannot work. It is raised at registration, before any run.

    Example::

        @hook("before_tol")  # RegistrationError: unknown point 'before_tol'. Did you mean 'before_tool'?
        def check(ctx, request): ...
    """


class InvalidResultError(HooklineError, TypeError):
    """A hook returned a value that its point cannot use."""


class HookTimeoutError(HooklineError, TimeoutError):
    """A hook ran longer than its ``timeout``."""


class HookError(HooklineError):
    """A hook with ``on_failure="closed"`` failed, so the guarded action did not happen (DESIGN 5.1).

    ``hook`` and ``point`` are their names, ``cause`` is the original exception. ``location`` is the file and line of
    the hook's code that raised it, such as ``rules.py:12``; empty if no code of the hook did. It is not part of the
    message, because a model may read the message, and because recordings are compared when lines have moved.

    Example::

        try:
            await registry.fire(BEFORE_TOOL, request)
        except HookError as error:
            print(error.hook, error.point, error.cause)
    """

    def __init__(self, hook: str, point: str, cause: BaseException) -> None:
        super().__init__(f"hook {hook!r} failed at {point}: {describe(cause)}")
        self.hook, self.point, self.cause = hook, point, cause
        self.location = _location_of(cause)
        self.verdict: Any = None  # the verdict of the point
        self.__cause__ = cause


_MACHINERY = ("hookline._", "hookline.backtest.", "hookline.tape.")
"""Modules that call hooks."""


def _location_of(error: BaseException) -> str:
    """Return the file and line of the innermost frame in the file of the hook, past the code that calls hooks."""
    found, file, line = error.__traceback__, "", 0
    while found is not None:
        code = found.tb_frame.f_code
        if not file and not str(found.tb_frame.f_globals.get("__name__")).startswith(_MACHINERY):
            file = code.co_filename
        if code.co_filename == file:
            line = found.tb_lineno
        found = found.tb_next
    return f"{os.path.basename(file)}:{line}" if file else ""


class ModelError(HooklineError):
    """A model call failed. The run first fires ``on_error``, where a hook may retry or answer."""


class CallRefusedError(HooklineError):
    """A call of ``ctx.llm`` was refused (DESIGN 4.8). If nothing catches this, the run ends with ``status``."""

    def __init__(self, message: str, *, status: str, reply: str = "", hook: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.status, self.reply, self.hook, self.reason = status, reply, hook, reason
        self.verdict: Any = None  # the verdict of the point where the error was raised


class OutputError(HooklineError):
    """The model's final reply does not match the agent's ``output_type``, and no retries are left.

    ``reply`` is the last reply, ``problem`` the reason why it does not match.
    """

    def __init__(self, type_name: str, reply: str, problem: str) -> None:
        super().__init__(f"the final reply does not match {type_name}: {problem}. The reply was: {reply!r:.300}")
        self.reply, self.problem = reply, problem
