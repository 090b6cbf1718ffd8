"""Agents that work together: subagents, personalities, tickets."""
