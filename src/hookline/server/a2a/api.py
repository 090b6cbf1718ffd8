"""The endpoints of the A2A protocol."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from ..._base.text import error_text
from ..._base.workers import in_thread
from ..._net.urls import parse_host
from ...stores.audit.log import AuditLog
from ...stores.errors import StoreError
from ...stores.runs import RunStore
from ..auth import PUBLIC, RIGHTS
from ..routing import Endpoint, Gate
from ..runs import RunService

if TYPE_CHECKING:
    from .protocol import A2aProtocol

log = logging.getLogger("hookline")

CARD_PATH = "/.well-known/agent-card.json"
TAKEOVER_SECONDS = 5.0
"""Interval in seconds at which the receivers of processes that have ended are taken over."""


class A2aApi:
    """Serve the agents of a service over A2A, versions 1.0 and 0.3.

    The SDK is imported when it is needed for the first time, because that takes half a second.

    Args:
        service: runs the agents. Open it before this object is opened, and close it before this object is closed.
        store: the store of the runs, which also keeps the messages of tasks and the receivers of push notifications.
        gate: knows the present rights of callers, and whether they use API keys, which the agent card then says.
        audit: gets a record of every standing permission that is given.
        push: options for :class:`PushNotifier`.
    """

    def __init__(
        self, service: RunService, store: RunStore, gate: Gate, audit: AuditLog | None = None, **push: Any
    ) -> None:
        self._service, self._subscriptions, self._gate, self._audit = service, store.push_subscriptions, gate, audit
        self._messages = store.task_messages
        hosts = (f"[{host}]" if host.count(":") > 1 else host for host in service.options.push_hosts)
        self._push_options = {"hosts": frozenset(parse_host(host)[0] for host in hosts), **push}
        self._loaded: A2aProtocol | None = None
        self._loading = asyncio.Lock()
        self._taking_over: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Send the notifications that an earlier process could not send.

        On PostgreSQL, also those of other replicas that end later.

        Raises:
            StoreError: the file cannot be used.
        """
        await self._take_over()
        if self._subscriptions.db.is_shared:
            self._taking_over = asyncio.create_task(self._keep_taking_over(), name="hookline-push")

    async def close(self) -> None:
        """Stop sending notifications."""
        if self._taking_over is not None:
            self._taking_over.cancel()
            await asyncio.wait([self._taking_over])
        if self._loaded is not None:
            await self._loaded.push.close()

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the endpoints."""
        scopes = PUBLIC if self._service.options.public_card else RIGHTS
        summary = "Get the A2A card of"
        return [
            Endpoint(
                "GET", CARD_PATH, self._card, scopes, "first_agent_card", f"{summary} the first agent", response=dict
            ),
            Endpoint(
                "GET",
                f"/a2a/{{agent}}{CARD_PATH}",
                self._card,
                scopes,
                "agent_card",
                f"{summary} an agent",
                response=dict,
                errors=(404,),
            ),
            Endpoint(
                "POST",
                "/a2a/{agent}",
                self._call,
                ("read", "run", "approve"),
                "a2a",
                "Call an A2A method (JSON-RPC, versions 1.0 and 0.3)",
                body=dict,
                response=dict,
                errors=(404,),
                slash=True,
            ),
        ]

    async def protocol(self) -> A2aProtocol:
        """Return the part that uses the SDK."""
        async with self._loading:
            found = self._loaded = self._loaded or await in_thread(self._load)
        return found

    def _load(self) -> A2aProtocol:
        from .history import History
        from .protocol import A2aProtocol
        from .push import PushNotifier

        history = History(self._service, self._messages)
        push = PushNotifier(
            self._service, self._subscriptions, history, self._gate.current_caller, **self._push_options
        )
        return A2aProtocol(self._service, self._gate, self._audit, push, history)

    async def _card(self, request: Request) -> Response:
        return await (await self.protocol()).card(request)

    async def _call(self, request: Request) -> Response:
        return await (await self.protocol()).call(request)

    async def _take_over(self) -> None:
        if rows := await asyncio.to_thread(self._subscriptions.claim_abandoned):
            (await self.protocol()).push.resume(rows)

    async def _keep_taking_over(self) -> None:
        while True:
            await asyncio.sleep(TAKEOVER_SECONDS)
            try:
                await self._take_over()
            except StoreError as error:
                log.error("push notifications of other processes cannot be taken over: %s", error_text(error))
