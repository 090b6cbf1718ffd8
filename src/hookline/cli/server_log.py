"""The output of ``hookline serve`` without a terminal: log lines."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from .._base.text import error_text
from ..stores.errors import StoreError
from .services import ServiceLog
from .text import counted

if TYPE_CHECKING:
    from ..server.app import Server

log = logging.getLogger("hookline")

NO_AUDIT_LOG = 'no audit log: logins are in the server log only (remove audit = "none" to keep an audit log)'


class ServerLog(ServiceLog):
    """Print log lines to stderr in the configured format."""

    def __init__(self, server: Server, *, debug: bool) -> None:
        super().__init__(server.options.logs, debug=debug)
        self._server = server
        self.is_started = False

    def __exit__(self, *exception: object) -> None:
        if self.is_started:
            self.print(stopped_text(self._server))
        super().__exit__(*exception)

    def print(self, line: str) -> None:
        """Print a line."""
        log.info("%s", line)

    def print_link(self, line: str) -> None:
        """Print a line with a link that logs in, which the log would hide as a secret."""
        sys.stderr.write(f"{line}\n")

    def on_started(self) -> None:
        """Print the address and the agents."""
        self.is_started = True
        server = self._server
        names = ", ".join(agent.name for agent in server.service.agents.list())
        where = f"{server.url}{all_addresses(server.options.host)}"
        self.print(f"listening at {where}, {keys_text(server.gate.needs_keys)}, agents: {names}")
        self.advise()

    def advise(self) -> None:
        """Print where the console is, and advice about the configuration."""
        # Other programs keep JSON logs, and a link that logs in is not for them.
        if self._logs == "text" or (self._logs == "auto" and sys.stderr.isatty()):
            try:
                self.print_link(f"console: {self._server.console_link()}")
            except StoreError as error:
                log.warning("no link to log in to the console: %s", error_text(error))
        if self._server.gate.needs_keys and not self._server.gate.is_audited:
            self.print(NO_AUDIT_LOG)

    def stopping(self, *, again: bool) -> None:
        """Announce the shutdown."""
        if again or not self._server.options.execute:  # workers execute the runs
            self.print("stopping now")
        else:
            self.print("stopping after the current runs; Ctrl-C again stops at once")


def stopped_text(server: Server) -> str:
    """Return the last line: the number of requests."""
    return f"stopped: {counted(server.traffic.total, 'request')}, {server.traffic.refused} refused"


def all_addresses(host: str) -> str:
    """Return what to add to the address of a server that accepts requests from other machines."""
    return " and all other addresses of this machine" if host in ("0.0.0.0", "::") else ""


def keys_text(needed: bool) -> str:
    """Say whether callers need API keys."""
    return "keys required" if needed else "no keys needed on this machine"
