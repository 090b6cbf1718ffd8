"""The rules of TerminalGuard: one module for each profile, and the paths, patterns and scripts that they share."""
