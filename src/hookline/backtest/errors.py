"""Errors of the backtest."""

from __future__ import annotations

from .._base.errors import PlainError


class BacktestError(PlainError):
    """A backtest cannot be made: an option, an expression or the input is invalid. The message says what to do."""
