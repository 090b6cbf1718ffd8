from ..server.console.conftest import browser  # noqa: F401
