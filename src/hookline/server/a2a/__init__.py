"""Agents over the A2A protocol, 1.0 and 0.3: tasks are served runs."""
