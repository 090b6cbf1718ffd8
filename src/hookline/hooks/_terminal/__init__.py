"""The rules of TerminalGuard: which programs, options and paths only read. Nothing here knows of hooks."""
