"""The command ``hookline agent-hook``: hooks of Hookline as one hook of a coding agent.

The agent starts the command for each event. ``client`` passes the event to a resident process (``resident``), where a
codec (``codecs``) reads it as an :class:`~.events.AgentEvent`, ``judge`` fires the hooks of the point that it belongs
to, and the codec writes their answer in the form that the agent obeys.
"""
