"""The rules of TerminalGuard: which programs, options and paths only read. These modules do not depend on hooks."""
