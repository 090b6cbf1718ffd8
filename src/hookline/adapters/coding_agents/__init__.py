"""The command ``hookline agent-hook``: hooks of Hookline as one hook of a coding agent.

The agent starts ``entry`` for each event. ``client`` passes the event to a resident process (``resident``), which the
full command (``command``) starts if there is none. In that process, a codec (``codecs``) reads the event as an
:class:`~.events.AgentEvent`, ``judge`` fires the hooks of the point that it belongs to, and the codec writes their
answer in the form that the agent obeys.
"""
