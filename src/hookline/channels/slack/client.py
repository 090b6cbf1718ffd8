"""Connection to Slack: the Web API, the dispatch of requests, and socket mode.

Slack's own ``slack_bolt`` checks and dispatches requests, and ``slack_sdk`` calls the Web API. The loop of socket mode
is ours, because the client in ``slack_sdk`` repeats a failed connection with an address that Slack accepts only once,
does not say whether it is connected, and handles messages in any order.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import aiohttp
from slack_bolt.async_app import AsyncApp, AsyncBoltRequest
from slack_bolt.authorization import AuthorizeResult
from slack_bolt.response import BoltResponse
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient
from yarl import URL

from ..._base.attachment import check_size
from ..protocol import ChannelError
from ..receiving import await_unless_stopped
from .messages import Bot

Receive = Callable[[str, Mapping[str, Any], MutableMapping[str, Any]], None]
"""Called with ``event`` or ``action``, its content, and the context of the request, in the order of arrival."""

Handle = Callable[[AsyncBoltRequest], Awaitable[BoltResponse]]

HEARTBEAT = 10.0
"""Seconds between two checks of the connection."""

_TIMEOUT = 30
_MAX_MESSAGE = 4_000_000

_logger = logging.getLogger("hookline.slack")
_logger.setLevel(logging.ERROR)  # at lower levels the libraries log the texts of messages


class DisconnectedError(Exception):
    """The connection of socket mode is lost."""


class SlackClient:
    """The Web API of one workspace, as one bot.

    Args:
        token: the token of the bot.
        signing_secret: checks requests over HTTP; empty in socket mode.
        base_url: the URL of the Web API.
        proxy: the URL of a proxy; taken from the environment if left out.
        receive: gets the events and actions.
    """

    def __init__(self, token: str, signing_secret: str, base_url: str, proxy: str | None, receive: Receive) -> None:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT))
        self.web = AsyncWebClient(
            token,
            base_url=base_url,
            timeout=_TIMEOUT,
            proxy=proxy,
            session=self._session,
            logger=_logger,
            retry_handlers=[],  # the gateway repeats what failed
        )
        base = URL(base_url)
        self._origin = base.scheme, base.host, base.port
        self.bot: Bot | None = None
        self._dispatching = asyncio.Lock()

        async def authorize() -> AuthorizeResult:
            assert self.bot is not None
            return AuthorizeResult(
                enterprise_id=None, team_id=None, bot_token=token, bot_id=self.bot.bot, bot_user_id=self.bot.user
            )

        self._app = AsyncApp(
            name=_logger.name,  # the library sets the level of the logger with this name
            logger=_logger,
            client=self.web,
            signing_secret=signing_secret,
            authorize=authorize,
            process_before_response=True,
        )

        async def on_event(context: Any, event: Any) -> None:
            receive("event", event, context)

        async def on_action(ack: Any, context: Any, body: Any) -> None:
            await ack()
            receive("action", body, context)

        self._app.event("message")(on_event)
        self._app.event("app_mention")(on_event)
        for action in ("hookline_approve", "hookline_session", "hookline_deny"):
            self._app.action(action)(on_action)

    async def identify(self) -> Bot:
        """Ask Slack which bot the token belongs to.

        Raises:
            SlackApiError: Slack rejects the token.
        """
        found = await self.web.auth_test()
        self.bot = Bot(
            str(found["user_id"]),
            found.get("bot_id") or "",
            found.get("user") or "",
            found.get("team_id") or "",
            found.get("enterprise_id") or "",
        )
        return self.bot

    async def dispatch(self, request: AsyncBoltRequest) -> BoltResponse:
        """Check a request and pass it on. Requests are dispatched in the order in which this is called."""
        async with self._dispatching:
            response = await self._app.async_dispatch(request)
        # 404: an event that we do not need. Slack would repeat it unless it is acknowledged.
        return BoltResponse(status=200, body="") if response.status == 404 else response

    async def listen(
        self, app_token: str, handle: Handle, connected: Callable[[], None], stopping: asyncio.Event
    ) -> None:
        """Receive requests over one connection of socket mode until Slack ends it, or ``stopping`` is set.

        A request is acknowledged when ``handle`` returns the status 200. Requests in progress are finished first.

        Raises:
            SlackApiError: Slack does not open a connection.
            DisconnectedError: the connection is lost.
        """
        opened = await await_unless_stopped(self.web.apps_connections_open(app_token=app_token), stopping)
        if opened is None:
            return
        tasks: set[asyncio.Task[None]] = set()
        async with self._session.ws_connect(
            str(opened["url"]), heartbeat=HEARTBEAT, proxy=self.web.proxy, max_msg_size=_MAX_MESSAGE
        ) as socket:
            try:
                while not stopping.is_set():
                    message = await await_unless_stopped(socket.receive(), stopping)
                    if message is None:
                        return
                    if message.type != aiohttp.WSMsgType.TEXT:
                        raise DisconnectedError("Slack closed the connection")
                    envelope = json.loads(message.data)
                    match envelope.get("type"):
                        case "hello":
                            connected()
                        case "disconnect":
                            return
                        case _ if envelope.get("envelope_id"):
                            task = asyncio.create_task(_answer(socket, envelope, handle))
                            tasks.add(task)
                            task.add_done_callback(tasks.discard)
            finally:
                if tasks:
                    await asyncio.wait(tasks)

    async def read_file(self, id: str, max_size: int | None) -> bytes:
        """Return the content of a file.

        The token is sent to the host of the Web API and to Slack's host for files only: a file may be a link to
        another host.

        Raises:
            AttachmentError: the file has more than ``max_size`` bytes.
            ChannelError: Slack does not send the content.
            SlackApiError: the file does not exist, or the app may not read it.
        """
        file = (await self.web.files_info(file=id)).get("file") or {}
        url = URL(str(file.get("url_private_download") or file.get("url_private") or ""))
        if (url.scheme, url.host, url.port) not in (self._origin, ("https", "files.slack.com", 443)):
            raise ChannelError(f"the file {id} is not stored by Slack")
        check_size(int(file.get("size") or 0), "the file", max_size)
        async with self._session.get(
            url,
            headers={"Authorization": f"Bearer {self.web.token}"},
            proxy=self.web.proxy,
            allow_redirects=False,  # without the scope files:read, Slack redirects to its login page
        ) as response:
            if response.status != 200:
                raise ChannelError(f"Slack answers {response.status}: does the app have the scope files:read?")
            data = bytearray()
            async for part in response.content.iter_any():
                data += part
                check_size(len(data), "the file", max_size)
            return bytes(data)

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()


async def _answer(socket: aiohttp.ClientWebSocketResponse, envelope: Mapping[str, Any], handle: Handle) -> None:
    request = AsyncBoltRequest(mode="socket_mode", body=envelope.get("payload") or {})
    response = await handle(request)
    if response.status == 200 and not socket.closed:
        try:
            await socket.send_str(json.dumps({"envelope_id": envelope["envelope_id"]}))
        except (ConnectionError, aiohttp.ClientError):
            pass  # Slack sends the message again, and the gateway recognizes it


def error_code(error: SlackApiError) -> str:
    """Return the code of an error, such as ``not_in_channel``; the status of a response that is not JSON."""
    data = error.response.data
    code = data.get("error") if isinstance(data, dict) else None
    return str(code or f"status {error.response.status_code}")


def retry_after(error: SlackApiError) -> float | None:
    """Return the seconds that Slack asks to wait; ``None`` if it does not."""
    headers = {name.lower(): value for name, value in (getattr(error.response, "headers", None) or {}).items()}
    try:
        return float(headers["retry-after"])
    except (KeyError, ValueError):
        return None
