"""Settings of a gateway: the table ``gateway`` of a configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from ..config.settings import parse_table

Positive = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]


class GatewayOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of a gateway.

    Args:
        database: the SQLite file, or the PostgreSQL database, for messages and pairings.
        max_concurrent: maximum number of active runs.
        max_waiting: maximum number of messages of all conversations that wait for a run; ``None`` for no limit.
        max_queued: maximum number of waiting messages of one conversation; ``None`` for no limit.
        when_full: the treatment of further messages: ``refuse`` rejects them, ``queue`` keeps them. Both send
            ``busy_reply``.
        busy_reply: the reply to these messages; a standard text if empty.
        when_busy: a message that arrives during a run of its conversation waits (``queue``) or is added to the run
            (``steer``).
        typing: show that the agent is typing, if the platform can.
        progress: show which tools are used, if the platform can edit messages.
        approval_seconds: how long a call waits for approval before it is denied.
        grace: how many seconds active runs may take to finish when the gateway stops.
        send_timeout: seconds after which a send without a response counts as failed.
        give_up: hours after which a message that cannot be sent is given up.
        durable: whether runs survive the end of their process: another gateway, or this one after a restart, continues
            them from their journals.
        lease: seconds after which another process takes over the conversations of a process that does not respond.
        keep_days: how many days finished messages are remembered, to recognize duplicates.
        host: the address at which channels with web pages listen.
        port: their port; 0 for any free port.
        hosts: further host names of this server, such as the name of a reverse proxy.
    """

    database: str = ""
    max_concurrent: Positive = 8
    max_waiting: Positive | None = 1000
    max_queued: Positive | None = 50
    when_full: Literal["refuse", "queue"] = "refuse"
    busy_reply: str = ""
    when_busy: Literal["queue", "steer"] = "queue"
    typing: bool = True
    progress: bool = True
    approval_seconds: Annotated[float, msgspec.Meta(gt=0)] = 3600.0
    grace: Seconds = 20.0
    send_timeout: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    give_up: Annotated[float, msgspec.Meta(gt=0)] = 24.0
    durable: bool = False
    lease: Annotated[float, msgspec.Meta(ge=1)] = 30.0
    keep_days: Annotated[float, msgspec.Meta(gt=0)] = 7.0
    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8080
    hosts: tuple[str, ...] = ()

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> GatewayOptions:
        """Read the options from a table of settings.

        Raises:
            ConfigError: an option does not exist or has an invalid value.
        """
        return parse_table(cls, "gateway", table)
