"""How a gateway works: the table ``gateway`` of the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from ..config.settings import parse_table

Positive = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]


class GatewayOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a gateway works.

    Args:
        database: the SQLite file of messages and pairings.
        max_concurrent: how many runs there may be at once.
        max_waiting: how many messages may wait for a run, in all; ``None`` for any number.
        max_queued: how many of them in one conversation.
        when_full: what becomes of a message beyond that: ``refuse`` tells the sender, ``queue`` tells and keeps it.
        busy_reply: what the sender is told then.
        when_busy: a message that comes during a run of its conversation waits (``queue``) or is put into it
            (``steer``).
        typing: show that the agent is at work, where the platform can.
        progress: show what tools are being used, where the platform can edit messages.
        approval_seconds: how long somebody may take to approve a call, before it is denied.
        grace: how many seconds runs get to finish when the gateway is stopped.
        send_timeout: after how many seconds a send that gets no answer counts as failed.
        give_up: after how many hours a message that cannot be sent is given up.
        lease: after how many seconds without a sign of life another program takes over.
        keep_days: how long messages that are done with are known, if they are delivered again.
        host: where channels that are web pages listen.
        port: the port for that; 0 for any that is free.
        hosts: names they are known by, such as that of a proxy before them.
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
    lease: Annotated[float, msgspec.Meta(ge=1)] = 30.0
    keep_days: Annotated[float, msgspec.Meta(gt=0)] = 7.0
    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8080
    hosts: tuple[str, ...] = ()

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> GatewayOptions:
        """The options in a table of settings.

        Raises:
            ConfigError: one that does not exist, or a value it cannot have.
        """
        return parse_table(cls, "gateway", table)
