"""The web console: what runs, what waits, what was blocked, and why."""
