"""Hook scripts of Claude Code in Hookline's loop, as they are: see :class:`ClaudeHooks`."""

from ..._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
