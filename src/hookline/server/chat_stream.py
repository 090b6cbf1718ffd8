"""A stream of chunks as an HTTP answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from starlette.responses import StreamingResponse

from .reading import Reader


class ChatStream(StreamingResponse):
    """Sends chunks as a client takes them; however that ends, nothing is read from the run afterwards."""

    media_type = "text/event-stream"

    def __init__(self, chunks: AsyncGenerator[bytes, None], reader: Reader, headers: Mapping[str, str]) -> None:
        super().__init__(chunks, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no", **headers})
        self._chunks, self._reader = chunks, reader

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve it, as ASGI has it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._reader.close()
            await self._chunks.aclose()
