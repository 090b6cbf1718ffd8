"""The pages of the web console, and the files that they need."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ...hooks.spending_limit import SpendingLimit
from ...stores.audit.log import AuditLog
from ...stores.keys import KeyStore
from ...stores.tickets import TicketBoard
from ..approvals import ApprovalService
from ..audit import AuditService
from ..auth import PUBLIC
from ..errors import ApiError
from ..explain import RunRecords
from ..halts import HaltService
from ..replay import ReplayService
from ..routing import Endpoint, Gate
from ..runs import RunService
from .approvals import ApprovalsPage
from .audit import AuditPages
from .chat import ChatPage
from .figures import FiguresPages
from .find import FindPage
from .halt import HaltPage
from .live import LiveViews
from .login import LoginPages, error_page
from .now import NowPage
from .render import STATIC, static_file
from .replay import ReplayPages
from .run import RunPage
from .runs import RunsPages
from .tickets import TicketsPage

_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


class ConsoleApi:
    """The console at ``/``.

    Args:
        service: runs the agents.
        keys: the API keys; ``None`` if the host application knows the callers.
        gate: checks the keys of people who log in.
        records: the records of the runs.
        log: reads and verifies the audit log.
        replays: tries rules on recorded runs.
        halts: the stop switch.
        audit: gets a record of every permission that is given or revoked here.
        tickets: the ticket board; without one, there is no page of it.
        limits: the spending limits of the agents.
    """

    def __init__(
        self,
        service: RunService,
        keys: KeyStore | None,
        gate: Gate,
        records: RunRecords,
        log: AuditService,
        replays: ReplayService,
        halts: HaltService,
        audit: AuditLog | None = None,
        tickets: TicketBoard | None = None,
        limits: Sequence[SpendingLimit] = (),
    ) -> None:
        self.login = LoginPages(keys, gate)
        self._live = LiveViews(service.pulse, halts, partial(_waiting, service), has_tickets=tickets is not None)
        approvals = ApprovalService(service.approvals, audit)
        self._has_tickets = tickets is not None
        self._has_login = keys is not None
        self._pages = (
            self.login,
            self._live,
            NowPage(service, keys, self._live),
            RunsPages(service, keys, self._live),
            RunPage(service, keys, self._live, records, is_audited=log.is_on),
            FiguresPages(service, keys, self._live, limits),
            ApprovalsPage(approvals, service.store, keys, self._live),
            ReplayPages(replays, service, self._live),
            AuditPages(log, keys, self._live),
            FindPage(service, self._live),
            ChatPage(service, approvals, self._live),
            HaltPage(halts, self._live),
            *(() if tickets is None else (TicketsPage(tickets, self._live),)),
        )

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the endpoints."""
        static = Endpoint("GET", STATIC, self._static, PUBLIC, "console_file", error_page=error_page, described=False)
        endpoints = [static, *(each for page in self._pages for each in page.endpoints())]
        errors = partial(error_page, has_tickets=self._has_tickets, has_login=self._has_login)
        return [msgspec.structs.replace(each, error_page=errors) for each in endpoints]

    async def open(self) -> None:
        """Do nothing: the stores are looked at when a page is open."""

    async def close(self) -> None:
        """Stop the updates of open pages."""
        await self._live.close()

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        data = static_file(name)
        if data is None:
            raise ApiError(404, "not_found", "the console has no such file")
        media = _TYPES[name.rpartition(".")[2]]
        return Response(data, media_type=media, headers={"cache-control": "public, max-age=31536000, immutable"})


def _waiting(service: RunService, owner: str | None) -> int:
    """Return how many calls of an owner, or of all, wait for a person; at most 100."""
    return len(service.approvals.rows(status="pending", owner=owner, limit=100))
