"""Agents over HTTP: one service of runs, and the transports that use it."""
