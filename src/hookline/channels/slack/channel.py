"""The Slack channel: people mention the bot in channels, or write to it directly, and approve calls with buttons."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..._base.attachment import AttachmentError
from ..._base.errors import NotInstalledError
from ..._base.frozen import scrub
from ..._base.tasks import wait_at_most
from ..._base.text import describe
from ...stores.messages import InboundFile, InboundMessage, OutboundMessage
from ..protocol import (
    Address,
    ApprovalOutcome,
    ApprovalPrompt,
    Capabilities,
    ChannelError,
    Deliver,
    Health,
    UndeliverableError,
)
from ..receiving import MAX_DELAY, Backoff, InFlight, RetryingDelivery, await_unless_stopped
from ..validation import checked_name, checked_path

if TYPE_CHECKING:
    from slack_bolt.async_app import AsyncBoltRequest
    from slack_bolt.response import BoltResponse
    from starlette.requests import Request
    from starlette.responses import Response

    from .client import SlackClient

log = logging.getLogger("hookline")

MAX_LENGTH = 3000
"""Longest message, in characters. Slack accepts more, but shows the rest only on request."""

CHAT_ID = re.compile(r"[A-Z0-9]{1,40}")
"""Ids of Slack conversations."""

WARNING_SECONDS = 60.0
"""Seconds between two log lines about rejected requests, which anyone can cause."""

EDIT_DELAYS = (0.5, 2.0, 5.0)
"""Seconds before each further attempt to change the buttons of a message."""

_REMEMBERED = 500
_DELIVERY = "hookline_delivery"
_TOKEN = re.compile(r"xoxb-[A-Za-z0-9-]{1,250}")
_APP_TOKEN = re.compile(r"xapp-[A-Za-z0-9-]{1,250}")
_SECRET = re.compile(r"[A-Za-z0-9]{16,200}")
_BAD_TOKEN = frozenset(
    ("account_inactive", "invalid_auth", "not_allowed_token_type", "not_authed", "token_expired", "token_revoked")
)
_TEMPORARY = _BAD_TOKEN | {
    "accesslimited",
    "fatal_error",
    "internal_error",
    "missing_scope",
    "ratelimited",
    "request_timeout",
    "service_unavailable",
    "team_added_to_org",
}
"""Errors of the Web API that pass, or that an operator can solve. With all others, the message can never be sent."""


class _SentMessage:
    """A message that may show a call, and what it shows below the text."""

    def __init__(self, address: Address, ts: str, text: str, prompt: ApprovalPrompt | None) -> None:
        self.address = address
        self.ts = ts
        self.text = text
        self.outcome: ApprovalOutcome | None = None
        self.shown: tuple[ApprovalPrompt | None, ApprovalOutcome | None] = (prompt, None)
        self.lock = asyncio.Lock()


class SlackChannel:
    """Exchange messages with people on Slack, as the bot to which the token belongs.

    Messages in a channel are answered in their thread, and each thread is a conversation. Calls that need approval have
    buttons. With ``app_token``, messages arrive over a connection that the gateway opens (socket mode); with
    ``signing_secret``, Slack posts them to the gateway over HTTP.

    Example::

        SlackChannel(token=os.environ["SLACK_BOT_TOKEN"], app_token=os.environ["SLACK_APP_TOKEN"])

    Args:
        name: the name of the channel.
        token: the token of the bot, which begins with ``xoxb-``.
        app_token: the app-level token for socket mode, which begins with ``xapp-``.
        signing_secret: the signing secret of the app, for HTTP.
        path: the path for HTTP requests; ``/slack/NAME`` if left out.
        base_url: the URL of another server with Slack's Web API.
        proxy: the URL of a proxy; taken from the environment if left out.

    Raises:
        ChannelError: a setting is invalid.
        NotInstalledError: the packages of the extra ``slack`` are missing.
    """

    def __init__(
        self,
        name: str = "slack",
        *,
        token: str,
        app_token: str | None = None,
        signing_secret: str | None = None,
        path: str | None = None,
        base_url: str = "https://slack.com/api",
        proxy: str | None = None,
    ) -> None:
        self.name = checked_name(name)
        if not (isinstance(token, str) and _TOKEN.fullmatch(token)):
            raise ChannelError(
                "token is not the token of a Slack bot, which begins with xoxb-: it is under OAuth & Permissions"
            )
        if (app_token is None) == (signing_secret is None):
            raise ChannelError("set either app_token, for socket mode, or signing_secret, for HTTP")
        if app_token is not None and not (isinstance(app_token, str) and _APP_TOKEN.fullmatch(app_token)):
            raise ChannelError(
                "app_token is not an app-level token, which begins with xapp-: create one under Basic Information, "
                "with the scope connections:write"
            )
        if signing_secret is not None and not (isinstance(signing_secret, str) and _SECRET.fullmatch(signing_secret)):
            raise ChannelError("signing_secret is not the signing secret of an app: it is under Basic Information")
        for setting, url in (("base_url", base_url), ("proxy", proxy)):
            if url is not None and not re.match(r"https?://[^/]", str(url)):
                raise ChannelError(f"{setting} is not a URL, such as http://localhost:8081")
        if find_spec("slack_bolt") is None or find_spec("aiohttp") is None:
            raise NotInstalledError("slack-bolt", "slack")
        self.capabilities = Capabilities(max_length=MAX_LENGTH, edit=True, buttons=True, threads=True)
        self.path = checked_path(path or f"/slack/{self.name}").rstrip("/")
        if signing_secret is not None:
            self.routes = self._routes  # only then: the gateway starts a web server for channels with routes
        self._token = token
        self._app_token = app_token
        self._signing_secret = signing_secret or ""
        self._base_url = base_url.rstrip("/") + "/"
        self._proxy = proxy
        self._client: SlackClient | None = None
        self._delivery: RetryingDelivery | None = None
        self._last_delivery: dict[tuple[str, str], asyncio.Task[bool]] = {}
        self._requests = InFlight()
        self._task: asyncio.Task[None] | None = None
        self._edits: set[asyncio.Task[None]] = set()
        self._sent: OrderedDict[str, _SentMessage] = OrderedDict()
        self._prompts: dict[Address, dict[str, ApprovalPrompt]] = {}
        self._stopping = asyncio.Event()
        self._next_warning = 0.0
        self._health = Health(False, "not started")

    def __repr__(self) -> str:
        return f"SlackChannel({self.name!r}, {'socket mode' if self._app_token else f'path={self.path!r}'})"

    async def start(self, deliver: Deliver) -> None:
        """Start to receive messages.

        Raises:
            ChannelError: Slack rejects a token, or the channel is started already.
        """
        from slack_sdk.errors import SlackApiError

        from .client import SlackClient, error_code

        if self._client is not None:
            raise ChannelError(f"the channel {self.name!r} is started already: stop it first")
        client = self._client = SlackClient(
            self._token, self._signing_secret, self._base_url, self._proxy, self._receive
        )
        self._stopping, self._health = asyncio.Event(), Health(False, "connecting to Slack")
        self._delivery = RetryingDelivery(deliver, self._stopping, self._report)
        try:
            await client.identify()
        except SlackApiError as error:
            if error_code(error) in _BAD_TOKEN:
                await self._close()
                raise ChannelError(self._explain(error)) from None
            self._record_failure(error)
        except Exception as error:  # noqa: BLE001 - tried again in the background
            self._record_failure(error)
        except BaseException:
            await self._close()
            raise
        self._task = asyncio.create_task(self._serve(client), name=f"hookline slack {self.name}")

    async def stop(self) -> None:
        """Stop receiving. Slack sends messages that were not acknowledged again, for some minutes."""
        if self._task is None:
            return
        self._stopping.set()
        try:
            await self._task
            await self._requests.wait_until_idle()
            if self._edits:
                await asyncio.wait(self._edits)
        finally:
            self._task, self._health = None, Health(False, "stopped")
            await self._close()

    def health(self) -> Health:
        """Whether messages can be received."""
        return self._health

    async def read_file(self, file: InboundFile, max_size: int | None) -> bytes:
        """Return the content of a file that a person shared. The app needs the scope ``files:read``.

        Raises:
            AttachmentError: it has more than ``max_size`` bytes.
            ChannelError: it cannot be read.
        """
        if self._client is None:
            raise ChannelError(f"the channel {self.name!r} is not started")
        with self._requests, self._translated_errors():
            return await self._client.read_file(file.id, max_size)

    async def send(self, address: Address, message: OutboundMessage, *, key: str) -> str:
        """Send a message and return its id. The reply to a pressed button is shown to the person who pressed it only.

        Raises:
            ChannelError: the message cannot be sent at the moment.
            UndeliverableError: the channel does not exist, the bot is not in it, or Slack rejects the text.
        """
        from .blocks import fallback, render
        from .messages import person_who_pressed

        text = _checked_text(message)
        fields: dict[str, Any] = {"text": fallback(text)}
        if thread := message.thread_id or address.thread_id:
            fields["thread_ts"] = thread
        if person := person_who_pressed(message.reply_to):
            sent = await self._request("chat_postEphemeral", address, user=person, blocks=render(text), **fields)
            return str(sent["message_ts"])
        prompt = self._prompt(address, key)
        sent = await self._request(
            "chat_postMessage",
            address,
            blocks=render(text, prompt, thread=address.thread_id),
            unfurl_links=False,  # a preview would fetch addresses that a model wrote
            unfurl_media=False,
            **fields,
        )
        self._remember(key, _SentMessage(address, str(sent["ts"]), text, prompt))
        return str(sent["ts"])

    async def edit(self, address: Address, message_id: str, message: OutboundMessage) -> None:
        """Change the text of a message that the bot sent.

        Raises:
            ChannelError: the message cannot be changed at the moment.
            UndeliverableError: there is no such message.
        """
        from .blocks import fallback, render

        text = _checked_text(message)
        await self._request("chat_update", address, ts=message_id, text=fallback(text), blocks=render(text))

    def approvals_changed(self, address: Address, prompts: Sequence[ApprovalPrompt]) -> None:
        """Show buttons below the messages that request approvals, and remove the others."""
        before = self._prompts.pop(address, {})
        if prompts:
            self._prompts[address] = {prompt.key: prompt for prompt in prompts}
        for key in before.keys() | {prompt.key for prompt in prompts}:
            self._update_soon(key)

    def approval_closed(self, address: Address, outcome: ApprovalOutcome) -> None:
        """Show the outcome of a call below the message that requested its approval."""
        if outcome.key in self._sent:
            self._sent[outcome.key].outcome = outcome
            self._update_soon(outcome.key)

    # Buttons

    def _prompt(self, address: Address, key: str) -> ApprovalPrompt | None:
        return self._prompts.get(address, {}).get(key)

    def _remember(self, key: str, sent: _SentMessage) -> None:
        self._sent[key] = sent
        self._update_soon(key)  # the call may have been decided while its message was being sent
        for old in [key for key, each in self._sent.items() if self._prompt(each.address, key) is None]:
            if len(self._sent) <= _REMEMBERED:
                break
            del self._sent[old]

    def _update_soon(self, key: str) -> None:
        sent = self._sent.get(key)
        if sent is None or sent.shown == (self._prompt(sent.address, key), sent.outcome):
            return
        task = asyncio.create_task(self._update(key, sent))
        self._edits.add(task)
        task.add_done_callback(self._edits.discard)

    async def _update(self, key: str, sent: _SentMessage) -> None:
        """Show the current state of a call below its message. People can still use the commands if this fails."""
        from .blocks import fallback, render

        for delay in (*EDIT_DELAYS, None):
            async with sent.lock:
                wanted = self._prompt(sent.address, key), sent.outcome
                if wanted == sent.shown:
                    return
                blocks = render(sent.text, *wanted, thread=sent.address.thread_id, channel=self.name)
                try:
                    await self._request(
                        "chat_update", sent.address, ts=sent.ts, text=fallback(sent.text), blocks=blocks
                    )
                except UndeliverableError as error:
                    log.info("channel %s: the buttons of a message cannot be changed: %s", self.name, error)
                    return
                except ChannelError as error:
                    problem, required = error, error.retry_after or 0.0
                else:
                    sent.shown = wanted
                    return
            if delay is None or await wait_at_most(self._stopping, max(delay, required)):
                log.warning("channel %s: the buttons of a message cannot be changed: %s", self.name, problem)
                return

    # Receiving

    async def _serve(self, client: SlackClient) -> None:
        backoff = Backoff()
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                if client.bot is None and await await_unless_stopped(client.identify(), self._stopping) is None:
                    return
                if self._app_token is None:
                    self._report("")
                    await self._stopping.wait()
                    return
                await client.listen(self._app_token, self._handle, lambda: self._report(""), self._stopping)
            except Exception as error:  # noqa: BLE001 - every error is retried
                self._record_failure(error)
            if time.monotonic() - began > MAX_DELAY:  # Slack ends each connection after some hours
                backoff.reset()
            await wait_at_most(self._stopping, backoff.next())

    async def _handle(self, request: AsyncBoltRequest) -> BoltResponse:
        """Handle a request. The status is 200 once the gateway has stored the message."""
        from slack_bolt.response import BoltResponse

        client = self._client
        if client is None or client.bot is None or self._stopping.is_set():
            return BoltResponse(status=503, body="")
        with self._requests:
            response = await client.dispatch(request)
            delivery = request.context.get(_DELIVERY)
            if delivery is not None and not await delivery:
                return BoltResponse(status=503, body="")
        return response

    def _receive(self, kind: str, content: Mapping[str, Any], context: MutableMapping[str, Any]) -> None:
        from .messages import to_decision, to_inbound

        assert self._client is not None
        assert self._client.bot is not None
        # Slack signs the requests of all workspaces that have the app in the same way. Ids of people and of
        # conversations are unique only within a workspace.
        workspace = context.get("team_id") or ""
        if not self._client.bot.is_in(workspace, context.get("enterprise_id") or ""):
            self._warn(f"a request of another workspace ({workspace}) was ignored")
            return
        message = (to_inbound if kind == "event" else to_decision)(content, self._client.bot)
        if message is not None:
            context[_DELIVERY] = self._deliver_in_order(message)

    def _deliver_in_order(self, message: InboundMessage) -> asyncio.Task[bool]:
        """Deliver a message after the messages of its conversation that arrived before."""
        key = message.chat_id, message.thread_id
        task = asyncio.create_task(self._deliver_after(self._last_delivery.get(key), message))
        self._last_delivery[key] = task

        def forget(done: asyncio.Task[bool]) -> None:
            if self._last_delivery.get(key) is done:
                del self._last_delivery[key]

        task.add_done_callback(forget)
        return task

    async def _deliver_after(self, earlier: asyncio.Task[bool] | None, message: InboundMessage) -> bool:
        assert self._delivery is not None
        if earlier is not None:
            await asyncio.wait([earlier])
        return await self._delivery.deliver_all([message])

    def _routes(self) -> Sequence[Any]:
        """Return the route for events and buttons.

        Raises:
            NotInstalledError: starlette is missing.
        """
        try:
            from starlette.routing import Route
        except ModuleNotFoundError:
            raise NotInstalledError("starlette", "slack") from None
        return [Route(self.path, self._post, methods=["POST"])]

    async def _post(self, request: Request) -> Response:
        from slack_bolt.async_app import AsyncBoltRequest
        from starlette.responses import PlainTextResponse, Response

        body = await request.body()
        try:
            received = AsyncBoltRequest(body=body.decode(), headers=dict(request.headers))
        except Exception:  # noqa: BLE001 - the library checks nothing before the signature
            return PlainTextResponse("the body is not a request of Slack", 400)
        response = await self._handle(received)
        if response.status == 401:
            self._warn("a request with a wrong signature was rejected")
        return Response(response.body, response.status, response.first_headers_without_set_cookie())

    def _warn(self, text: str) -> None:
        if time.monotonic() > self._next_warning:
            self._next_warning = time.monotonic() + WARNING_SECONDS
            log.warning("channel %s: %s", self.name, text)

    # Requests and errors

    async def _request(self, method: str, address: Address, **fields: Any) -> Any:
        if self._client is None:
            raise ChannelError(f"the channel {self.name!r} is not started")
        if not CHAT_ID.fullmatch(address.chat_id):
            raise UndeliverableError(f"{address.chat_id!r} is not the id of a Slack conversation, such as C0123ABCD")
        with self._requests, self._translated_errors():
            return await getattr(self._client.web, method)(channel=address.chat_id, **fields)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        from aiohttp import ClientError
        from slack_sdk.errors import SlackApiError, SlackClientError

        from .client import error_code, retry_after

        try:
            yield
        except (AttachmentError, ChannelError):
            raise
        except SlackApiError as error:
            code = error_code(error)
            if error.response.status_code == 429 or error.response.status_code >= 500 or code in _TEMPORARY:
                raise ChannelError(self._explain(error), retry_after=retry_after(error)) from None
            raise UndeliverableError(self._explain(error)) from None
        except (SlackClientError, ClientError, OSError, TimeoutError, RuntimeError, ValueError) as error:
            raise ChannelError(self._explain(error)) from None

    async def _close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _report(self, detail: str) -> None:
        bot = self._client.bot if self._client is not None else None
        how = "connected" if self._app_token else f"POST {self.path}"
        self._health = Health(not detail, detail or f"{how} as @{bot.name if bot else '?'}")

    def _record_failure(self, error: Exception) -> None:
        detail = self._explain(error)
        if detail != self._health.detail:
            log.warning("channel %s: %s", self.name, detail)
        self._health = Health(False, detail)

    def _explain(self, error: Exception) -> str:
        from aiohttp import WSServerHandshakeError
        from slack_sdk.errors import SlackApiError

        from .client import error_code

        if isinstance(error, SlackApiError):
            code = error_code(error)
            text = f"Slack answers {code}"
            if error.response.status_code == 429:
                text = "too many requests: Slack asks to wait"
            elif code in _BAD_TOKEN:
                text = f"Slack rejects a token of the app: install the app again and copy its tokens ({code})"
            elif code == "missing_scope":
                text = f"the app lacks the scope {error.response.get('needed')}: add it and install the app again"
            elif code in ("not_in_channel", "channel_not_found"):
                text = f"the bot is not in that conversation: invite it ({code})"
        elif isinstance(error, WSServerHandshakeError):
            text = f"Slack refuses the connection: status {error.status}"  # the full error has the secret address
        else:
            text = describe(error)
        for secret in (self._token, self._app_token, self._signing_secret):
            text = text.replace(secret, "(token)") if secret else text
        return text


def _checked_text(message: OutboundMessage) -> str:
    text = str(scrub(message.text))
    if not text.strip():
        raise UndeliverableError("the text is empty")
    if len(text) > MAX_LENGTH:
        raise UndeliverableError(f"the text is too long: {len(text)} characters, and Slack takes {MAX_LENGTH}")
    return text
