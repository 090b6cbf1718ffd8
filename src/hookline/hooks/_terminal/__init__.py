"""The parts of TerminalGuard: what programs may be told, and where paths lead."""
