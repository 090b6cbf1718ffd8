from .errors import ClaudeHookError as ClaudeHookError
from .hooks import ClaudeHooks as ClaudeHooks
