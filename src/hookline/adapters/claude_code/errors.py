"""The error of a hook script."""

from __future__ import annotations

from ..._base.errors import HooklineError


class ClaudeHookError(HooklineError):
    """A hook of Claude Code failed whose ``on_failure`` is ``closed``, so the run fails. The message says why."""
