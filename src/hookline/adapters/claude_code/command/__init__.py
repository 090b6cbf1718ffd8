"""The command ``hookline claude-hook``: hooks of Hookline as a hook of Claude Code."""
