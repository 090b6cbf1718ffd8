"""The page of the stop switch: halt all runs, and release them."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ..._base.workers import in_thread
from ..halts import HaltService, checked_reason
from ..routing import Endpoint, caller_of, correlation_of, json_response
from .live import LiveViews, Render
from .login import form, page_endpoint, wants_sections
from .render import base_of, page
from .sections import Sections, draw_all, draw_together

PATH = "/console/halt"
PARTS = ("switch", "past")


class HaltPage:
    """The page at ``/console/halt``.

    Args:
        halts: the switch.
        live: keeps open pages up to date.
    """

    def __init__(self, halts: HaltService, live: LiveViews) -> None:
        self._halts = halts
        self._live = live

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints."""
        admin = ("admin",)
        return [
            page_endpoint("GET", PATH, self._show, admin, "console_halt"),
            page_endpoint("GET", f"{PATH}/live", self._stream, admin, "console_halt_live"),
            page_endpoint("POST", PATH, self._switch, admin, "console_switch"),
        ]

    async def _show(self, request: Request) -> Response:
        sections = await self._live.show(request, *self._view(request))
        return page(request, "halt.html", title="Halt", sections=sections, live=f"{PATH}/live")

    async def _stream(self, request: Request) -> Response:
        return await self._live.stream(request, *self._view(request))

    def _view(self, request: Request) -> tuple[object, Render]:
        return "halt", partial(self._sections, base_of(request))

    async def _switch(self, request: Request) -> Response:
        fields, caller, correlation_id = await form(request), caller_of(request), correlation_of(request)
        if fields.get("act") == "release":
            await self._halts.release(caller, correlation_id)
        else:
            await self._halts.halt(checked_reason(fields.get("reason", "")), caller, correlation_id)
        if wants_sections(request):
            return json_response(await self._live.framed(request, partial(self._sections, base_of(request))))
        return RedirectResponse(base_of(request) + PATH, 303)

    async def _sections(self, base: str) -> Sections:
        return await draw_together((f"halt-{name}" for name in PARTS), in_thread(self._render, base))

    def _render(self, base: str) -> Sections:
        halt = self._halts.store.current()
        history = [] if halt is not None and halt.problem else self._halts.store.history()
        past = [each for each in history if each.released is not None]
        return draw_all("halt_sections.html", base, "halt", PARTS, halt=halt, past=past)
