"""Text that gives orders to a model: how it is found, disarmed and fenced, for the hook in injection_guard.py."""
