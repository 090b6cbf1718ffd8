"""Uvicorn, in the loop of whoever starts it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import h11
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from .guard import App

log = logging.getLogger("hookline")

HEAD_SECONDS = 15.0
"""How long a connection may take for the head of a request."""
REST_SECONDS = 2.0
"""How long the rest of a body may take once the request is answered: it is for nobody, and then it is cut off."""
SEND_SECONDS = 60.0
"""How long a connection may have more to send than fits, because the other end does not read: then it is cut off."""
IDLE_SECONDS = 60
"""How long a connection is kept for the next request: longer than clients keep one, which would else be cut off."""
MOST_AT_ONCE = 2000
"""How many connections there may be; further requests are told to come later."""


class OwnServer(Server):
    """A server that leaves signals to the program that it runs in."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Capture none."""
        yield

    def abort(self) -> None:
        """Close the connections that are still there."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()


class _Read:
    """A connection that is cut off if nobody reads what is sent.

    To close it would not do: that waits until what is left has been sent, and whoever sends would go on waiting too.
    """

    transport: Any
    loop: asyncio.AbstractEventLoop
    _full: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()  # type: ignore[misc]
        self._full = self._full or self.loop.call_later(SEND_SECONDS, self._nobody_reads)

    def resume_writing(self) -> None:
        self._emptied()
        super().resume_writing()  # type: ignore[misc]

    def connection_lost(self, exc: Exception | None) -> None:
        self._emptied()
        super().connection_lost(exc)  # type: ignore[misc]

    def _emptied(self) -> None:
        full, self._full = self._full, None
        if full is not None:
            full.cancel()

    def _nobody_reads(self) -> None:
        log.info("a client is cut off that did not read for %g s", SEND_SECONDS)
        self.transport.abort()


class _Connection(_Read, H11Protocol):
    """A connection that is closed if the head of a request does not come, or the rest of one that is answered."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.access_log = False  # uvicorn writes one wherever there is a handler, whatever it was told
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait(HEAD_SECONDS, self._too_slow)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._has_rest():
            self._wait(REST_SECONDS, self._rest_is_late)
        else:
            self._wait_for_next()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._patience is not None:
            self._patience.cancel()
        super().connection_lost(exc)

    def _wait(self, seconds: float, then: Callable[[], None]) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._patience = self.loop.call_later(seconds, then)

    def _wait_for_next(self) -> None:
        self._wait(self.timeout_keep_alive + HEAD_SECONDS, self._too_slow)

    def _too_slow(self) -> None:
        if self.conn.their_state is h11.IDLE:
            self.transport.close()

    def _has_rest(self) -> bool:
        """Whether a request is answered that is not all here."""
        return self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY

    def _rest_is_late(self) -> None:
        if self._has_rest():
            self.transport.close()
        else:
            self._wait_for_next()


class _Socket(_Read, WebSocketsSansIOProtocol):
    """A WebSocket that is cut off if it does not come to be, and whose messages are not logged."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn.debug = False
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._patience = self.loop.call_later(HEAD_SECONDS, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._patience is not None:
            self._patience.cancel()
        super().connection_lost(exc)

    def _too_slow(self) -> None:
        if not self.handshake_complete:  # such as one with a body, which nobody answers
            self.transport.abort()


def server_of(app: App, *, max_message: int, grace: float) -> OwnServer:
    """A server of an app; ``max_message`` are the bytes of one WebSocket message, ``grace`` seconds to stop."""
    return OwnServer(
        Config(
            app,
            http=_Connection,
            ws=_Socket,
            ws_max_size=max_message,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MOST_AT_ONCE,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=max(1, round(grace)),
        )
    )
