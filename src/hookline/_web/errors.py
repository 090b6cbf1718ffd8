"""What can go wrong with a web server."""

from __future__ import annotations

from .._kernel.errors import HooklineError


class WebError(HooklineError):
    """Something cannot be served as it is set up; it says what to do."""
