"""The page of the ticket board: what is to be done, who does it, and what happened so far."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from ..._base.workers import in_thread
from ...stores.tickets import COLUMNS, TicketBoard
from ..routing import Endpoint
from .live import LiveViews, Render, Version
from .login import page_endpoint
from .render import base_of, fragment, page
from .sections import Sections, draw, draw_together

PATH = "/console/tickets"
MAX_TICKETS = 30
"""Number of tickets of a column that the page shows, the newest ones."""


class TicketsPage:
    """The page at ``/console/tickets``. Tickets belong to no caller, so it needs the right ``admin``.

    Args:
        board: the tickets.
        live: keeps open pages up to date.
    """

    def __init__(self, board: TicketBoard, live: LiveViews) -> None:
        self._board = board
        self._live = live

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints."""
        pages = ((PATH, self._show, "console_tickets"), (f"{PATH}/live", self._stream, "console_tickets_live"))
        return [page_endpoint("GET", path, handler, ("admin",), name) for path, handler, name in pages]

    async def _show(self, request: Request) -> Response:
        sections = await self._live.show(request, *self._view(request))
        return page(request, "tickets.html", title="Tickets", sections=sections, live=f"{PATH}/live")

    async def _stream(self, request: Request) -> Response:
        return await self._live.stream(request, *self._view(request))

    def _view(self, request: Request) -> tuple[object, Render, Version]:
        base = base_of(request)
        return ("tickets", base), partial(self._sections, base), partial(in_thread, self._board.pulse)

    async def _sections(self, base: str) -> Sections:
        return await draw_together((f"tickets-{column}" for column in COLUMNS), in_thread(self._render, base))

    def _render(self, base: str) -> Sections:
        counts = self._board.counts() if self._board.exists() else {}
        ids = {f"tickets-{column}": column for column in COLUMNS}
        return {id: draw(id, partial(self._column, base, column, counts.get(column, 0))) for id, column in ids.items()}

    def _column(self, base: str, column: str, count: int) -> str:
        tickets = self._board.list([column], limit=MAX_TICKETS, newest=True) if count else []
        histories = {ticket.id: self._board.history(ticket.id) for ticket in tickets}
        return fragment("tickets_column.html", base, column=column, count=count, tickets=tickets, histories=histories)
