"""Every error Hookline raises, and what each one tells the person who meets it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .state import AgentResult


class HooklineError(Exception):
    """The base of all errors raised by Hookline itself."""


class RegistrationError(HooklineError, ValueError):
    """A hook, point or option that cannot work, found when it was registered."""


class InvalidResult(HooklineError, TypeError):
    """A hook returned something its point cannot use."""


class HookTimeout(HooklineError, TimeoutError):
    """A hook ran past its ``timeout``."""


def words(error: BaseException) -> str:
    """An error's message, whatever its own ``__str__`` does."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001
        return "an error that cannot be printed"


def describe(error: BaseException) -> str:
    """An error's type and message."""
    return f"{type(error).__name__}: {words(error)}"


class HookError(HooklineError):
    """A hook failed closed: the guarded action did not happen (DESIGN 5.1).

    ``__cause__`` is the exception itself.
    """

    def __init__(self, hook: str, point: str, cause: BaseException) -> None:
        super().__init__(f"hook {hook!r} failed at {point}: {describe(cause)}")
        self.hook = hook
        self.point = point
        self.cause = cause
        self.__cause__ = cause


class ModelError(HooklineError):
    """A model call failed; the loop puts it to ``on_error`` before giving up."""


class CallRefused(HooklineError):
    """A call of ``ctx.llm`` did not happen, or its reply may not be used (DESIGN 4.8).

    Left uncaught in a hook, it ends the run with ``status``.
    """

    def __init__(self, message: str, *, status: str, reply: str = "", hook: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reply = reply
        self.hook = hook


class RunFailed(HooklineError):
    """A run ended ``failed``. ``result`` holds everything up to the failure."""

    def __init__(self, result: AgentResult, cause: BaseException | None = None) -> None:
        first = result.errors[-1].message if result.errors else "unknown failure"
        super().__init__(str(cause) if cause is not None else first)
        self.result = result
        self.__cause__ = cause
