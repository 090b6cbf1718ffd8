"""Detection and fencing of prompt injection, for injection_guard.py."""
