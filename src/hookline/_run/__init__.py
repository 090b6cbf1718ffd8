"""A run: context, events, budget, loop and agent."""
