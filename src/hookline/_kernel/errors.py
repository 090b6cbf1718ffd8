"""Every error Hookline raises, and what each one tells the person who meets it."""

from __future__ import annotations

from typing import Any

from .._base.errors import HooklineError as HooklineError  # noqa: PLC0414 - the base of these too
from .._base.text import describe


class RegistrationError(HooklineError, ValueError):
    """A hook, point or option that cannot work, found when it was registered."""


class InvalidResultError(HooklineError, TypeError):
    """A hook returned something its point cannot use."""


class HookTimeoutError(HooklineError, TimeoutError):
    """A hook ran past its ``timeout``."""


class HookError(HooklineError):
    """A hook failed closed: the guarded action did not happen (DESIGN 5.1). ``__cause__`` says why."""

    def __init__(self, hook: str, point: str, cause: BaseException) -> None:
        super().__init__(f"hook {hook!r} failed at {point}: {describe(cause)}")
        self.hook, self.point, self.cause = hook, point, cause
        self.verdict: Any = None  # what the point concluded besides
        self.__cause__ = cause


class ModelError(HooklineError):
    """A model call failed; the loop puts it to ``on_error`` before giving up."""


class CallRefusedError(HooklineError):
    """A call of ``ctx.llm`` that may not be used (DESIGN 4.8); uncaught, it ends the run with ``status``."""

    def __init__(self, message: str, *, status: str, reply: str = "", hook: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.status, self.reply, self.hook, self.reason = status, reply, hook, reason
        self.verdict: Any = None  # what the point concluded that it left


class OutputError(HooklineError):
    """The model's final reply is no value of the agent's ``output_type``, and no retries are left.

    ``reply`` is the last reply, ``problem`` what is wrong with it.
    """

    def __init__(self, type_name: str, reply: str, problem: str) -> None:
        super().__init__(f"the final reply is no {type_name}: {problem}. It was: {reply!r:.300}")
        self.reply, self.problem = reply, problem
