"""Decide about waiting calls with signed links, in any program that can open a web page.

A link is an address with a token. The token names a call and the time until which it is valid, and its signature covers
the digest of the call as well. It is a few lines of HMAC: a library for tokens would add a dependency and options that
must be off.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import re
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import msgspec

from .._base.errors import HooklineError, NotInstalledError
from .._base.text import describe, one_line
from .._base.workers import in_thread
from .._kernel.errors import RegistrationError
from .._kernel.validation import check_path
from .._net.egress import Egress, EgressError, post
from .._net.http_client import FetchError
from .._net.signatures import HEADER, sign
from .._net.urls import UrlError, parse_url
from ..stores.approvals import MAX_MESSAGE, ApprovalRow, ApprovalStore, DecisionRefusedError
from ..stores.errors import NotFoundError, StoreError
from ._support import link_page

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from .._web.http_server import HttpServer

log = logging.getLogger("hookline")

PATH = "/approve/{token}"
"""The path of the pages."""
MIN_SECRET_LENGTH = 16
"""Shortest secret, in characters."""
WEBHOOK_SECONDS = 20.0
"""How long a request to the webhook may take."""
RETRY_DELAYS = (1.0, 5.0, 30.0, 120.0)
"""Seconds before each further attempt to send a link."""

_TOKEN = re.compile(r"([A-Za-z0-9_-]{1,900})\.([A-Za-z0-9_-]{43})")
_PURPOSE = b"hookline approval link 1"
_MAX_NAME = 200  # bytes, so that the token has a length that is accepted
_STORE = "store must be a SQLite file, such as 'approvals.db'"


class ApprovalLink(msgspec.Struct, frozen=True):
    """A link to a waiting call.

    ``to`` is the person it is for; empty if anyone who has it may use it. ``text`` is a message for that person, with
    the link, for an e-mail or a chat. It does not contain the arguments of the call: the page shows them.
    """

    url: str
    to: str
    row: ApprovalRow

    @property
    def subject(self) -> str:
        """One line that says what the call is."""
        return f"{one_line(self.row.agent) or 'An agent'} wants to call {one_line(self.row.tool)}"

    @property
    def text(self) -> str:
        """The message, with the link."""
        reasons = [f"{one_line(each.hook) or 'A hook'} asks: {one_line(each.text)}" for each in self.row.questions]
        until = link_page.format_time(self.row.expires)
        return "\n".join([f"{self.subject}.", *reasons, f"Look at it and decide by {until}:", self.url])


class LinkError(HooklineError):
    """A link cannot be used. ``code`` is ``invalid`` (not signed by us, or for another call) or ``expired``."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


Send = Callable[[ApprovalLink], Awaitable[object]]


class ApprovalLinks:
    """Let people decide about waiting calls with a signed link, sent to a webhook or by your own function.

    The link opens a page that shows the call with its exact arguments, and two buttons. Opening it decides nothing, so
    previews of links do no harm. A link is valid for one call with these arguments, until the call expires, and works
    once. Whoever has the link can decide: send it only to people who may.

    Example::

        links = ApprovalLinks("approvals.db", secret=os.environ["LINK_SECRET"], url="https://agents.example.org",
                              webhook="https://hooks.example.org/approvals", people=["ann@example.org"])
        agent = Agent("ops", llm=model, tools=[deploy],
                      hooks=[PlanModeHook(["deploy"]), ApprovalsHook(links.store, notify=links)])
        async with links.serve(port=8430):
            await agent.arun("Ship it.")

    Args:
        store: an :class:`ApprovalStore`, or the path of its SQLite file.
        secret: signs the links, at least 16 characters. Several secrets are accepted while one is being replaced; the
            first one signs.
        url: the public base URL of the pages; by default that of :meth:`serve`.
        webhook: a URL to which each link is posted as JSON, signed like the replies of the webhook channel.
        send: an async function that gets each :class:`ApprovalLink`, for example to send an e-mail.
        people: names or addresses of the people who decide. Each gets a link of their own, and the decision is recorded
            under this name. By default there is one link, and it is not known who used it.
        private: whether the host name of the webhook may resolve to a private address.

    Raises:
        RegistrationError: an argument is invalid.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | ApprovalStore,
        *,
        secret: str | Sequence[str],
        url: str = "",
        webhook: str = "",
        send: Send | None = None,
        people: Sequence[str] = (),
        private: bool = False,
    ) -> None:
        try:
            self.store = store if isinstance(store, ApprovalStore) else ApprovalStore(check_path(store, _STORE))
        except StoreError as error:
            raise RegistrationError(str(error)) from error
        secrets = (secret,) if isinstance(secret, str) else tuple(secret) if isinstance(secret, (list, tuple)) else ()
        if not secrets or not all(isinstance(each, str) and len(each) >= MIN_SECRET_LENGTH for each in secrets):
            raise RegistrationError(
                f"secret must have at least {MIN_SECRET_LENGTH} characters: create one with `openssl rand -hex 32`, "
                "and pass it through the environment"
            )
        if not isinstance(people, (list, tuple)) or not all(
            isinstance(each, str) and _is_name(each) for each in people
        ):
            raise RegistrationError('people must be a list of names or addresses, such as ["ann@example.org"]')
        if send is not None and (not callable(send) or isinstance(send, type)):
            raise RegistrationError(f"send must be an async function of a link, not {send!r:.80}")
        self._secrets = secrets
        self.url = _checked_url("url", url).rstrip("/") if url else ""
        self._webhook = _checked_url("webhook", webhook) if webhook else ""
        self._egress = _egress(self._webhook, private) if webhook else None
        self._send = send
        self._people = tuple(people) or ("",)

    def __repr__(self) -> str:
        return f"ApprovalLinks({self.url!r})"

    async def __call__(self, row: ApprovalRow) -> None:
        """Send links to a waiting call. Pass the object as ``notify`` to :class:`ApprovalsHook`."""
        await asyncio.gather(*(self._deliver(self.link(row, person)) for person in self._people))

    def link(self, row: ApprovalRow, to: str = "") -> ApprovalLink:
        """Return a link to a waiting call, for one person or for anyone who has it.

        Raises:
            LinkError: the address of the pages is not known yet.
        """
        if not self.url:
            raise LinkError("invalid", "links have no address: set url, or start serve() first")
        payload = _encode(msgspec.json.encode([row.id, int(row.expires), to]))
        mac = _encode(_mac(self._secrets[0], payload, row.digest))
        return ApprovalLink(f"{self.url}{PATH.format(token=f'{payload}.{mac}')}", to, row)

    def find(self, token: str) -> tuple[ApprovalRow, str]:
        """Return the call that a token is for, and the person.

        Raises:
            LinkError: the token is not valid, or has expired.
            StoreError: the file cannot be used.
        """
        invalid = LinkError("invalid", "the link is not complete, was changed, or is of another server")
        match = _TOKEN.fullmatch(token)
        if match is None:
            raise invalid
        payload, given = match[1], match[2]
        try:
            id, expires, to = msgspec.json.decode(_decode(payload), type=tuple[str, int, str])
            row = self.store.find(id)
        except (ValueError, msgspec.MsgspecError, NotFoundError):
            raise invalid from None
        known = [hmac.compare_digest(_encode(_mac(secret, payload, row.digest)), given) for secret in self._secrets]
        if not any(known):
            raise invalid
        if expires + 1 <= time.time():
            raise LinkError("expired", "the link has expired")
        return row, to

    @asynccontextmanager
    async def serve(
        self, host: str = "127.0.0.1", port: int = 8430, *, hosts: Sequence[str] = ()
    ) -> AsyncIterator[HttpServer]:
        """Serve the pages inside an ``async with`` block.

        Args:
            host: the address to listen on.
            port: the port; 0 picks a free one.
            hosts: further host names to accept, besides that of ``url``.

        Raises:
            WebError: the port is taken.
            NotInstalledError: a package is missing.
        """
        from .._web.http_server import HttpServer

        own = [parse_url(self.url).host] if self.url else []
        server = HttpServer([self], host, port, hosts=[*hosts, *own], extra="server")
        await server.start()
        before, self.url = self.url, self.url or server.url
        try:
            yield server
        finally:
            self.url = before
            await server.stop()

    def routes(self) -> Sequence[Any]:
        """Return the route of the pages, for a web server.

        Raises:
            NotInstalledError: starlette is missing.
        """
        try:
            from starlette.routing import Route
        except ModuleNotFoundError:
            raise NotInstalledError("starlette", "server") from None
        return [Route(PATH, self.show, methods=["GET"]), Route(PATH, self.decide, methods=["POST"])]

    async def show(self, request: Request) -> Response:
        """Answer a GET request with the page of a call. It decides nothing."""
        try:
            row, to = await in_thread(self.find, request.path_params["token"])
        except LinkError as error:
            return _problem(error)
        except StoreError as error:
            return _unavailable(error)
        return _page(200, link_page.call(row, to) if row.status == "pending" else link_page.outcome(row))

    async def decide(self, request: Request) -> Response:
        """Answer a POST request with the decision of a person."""
        try:
            row, to = await in_thread(self.find, request.path_params["token"])
            fields = await _form(request)
            if fields is None or fields.get("decision") not in ("approve", "deny"):
                return _page(400, link_page.problem("Nothing was decided", "The form is not complete. Try again."))
            row = await in_thread(
                self.store.decide,
                row.id,
                decision=fields["decision"],
                digest=row.digest,
                by=f"{to} (link)" if to else "link",
                message=fields.get("message", "")[:MAX_MESSAGE] if fields["decision"] == "deny" else "",
            )
        except LinkError as error:
            return _problem(error)
        except DecisionRefusedError as error:
            if error.code == "rights":
                return _page(403, link_page.problem("Nothing was decided", f"{error}."))
            if error.row is None:
                return _page(400, link_page.problem("Nothing was decided", f"{error}."))
            return _page(409, link_page.outcome(error.row, late=True))
        except StoreError as error:
            return _unavailable(error)
        return _page(200, link_page.outcome(row) if row.status != "pending" else link_page.recorded(row))

    # Sending

    async def _deliver(self, link: ApprovalLink) -> None:
        for delay in (*RETRY_DELAYS, None):
            try:
                if self._webhook:
                    await self._post(link)
                if self._send is not None:
                    await self._send(link)
                return
            except (EgressError, FetchError, _WebhookError) as error:
                if delay is None or (isinstance(error, _WebhookError) and not error.temporary):
                    raise
                log.warning("a link for the approval %s was not sent, trying again: %s", link.row.id, describe(error))
                await asyncio.sleep(delay)

    async def _post(self, link: ApprovalLink) -> None:
        assert self._egress is not None
        row = link.row
        body = msgspec.json.encode(
            {
                "type": "approval",
                "id": row.id,
                "to": link.to,
                "agent": row.agent,
                "tool": row.tool,
                "digest": row.digest,
                "questions": [{"hook": each.hook, "text": each.text} for each in row.questions],
                "expires": row.expires,
                "link": link.url,
                "subject": link.subject,
                "text": link.text,
            }
        )
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "hookline",
            "Idempotency-Key": f"{row.id}-{sha256(link.to.encode()).hexdigest()[:16]}",
            HEADER: sign(self._secrets[0], body),
        }
        response = await post(self._egress, self._webhook, body, headers=headers, seconds=WEBHOOK_SECONDS)
        if not 200 <= response.status < 300:
            raise _WebhookError(response.status)


class _WebhookError(HooklineError):
    def __init__(self, status: int) -> None:
        super().__init__(f"the webhook responded with status {status}")
        self.temporary = status >= 500 or status in (408, 409, 425, 429)


def _is_name(text: str) -> bool:
    return 0 < len(text.encode("utf-8", "replace")) <= _MAX_NAME and text.isprintable() and text.strip() == text


def _checked_url(setting: str, url: str) -> str:
    try:
        parse_url(url)
    except (UrlError, TypeError, AttributeError) as error:
        raise RegistrationError(f"{setting} is not like https://agents.example.org: {error}") from None
    return url


def _egress(webhook: str, private: bool) -> Egress:
    egress = Egress([parse_url(webhook).origin], private=private)
    problem = egress.check(webhook)
    if problem is not None:
        raise RegistrationError(f"the webhook {problem}")
    return egress


def _mac(secret: str, payload: str, digest: str) -> bytes:
    message = b"\0".join((_PURPOSE, payload.encode(), digest.encode("utf-8", "surrogatepass")))
    return hmac.new(secret.encode(), message, sha256).digest()


def _encode(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


async def _form(request: Request) -> Mapping[str, str] | None:
    """Return the fields of a form; ``None`` if the body is not a form."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        return None
    try:
        return dict(parse_qsl((await request.body()).decode(), max_num_fields=10, errors="strict"))
    except ValueError:
        return None


def _problem(error: LinkError) -> Response:
    if error.code == "expired":
        text = "Nothing was decided with this link, and it can no longer be used. The call was not approved in time."
        return _page(410, link_page.problem("This link has expired", text))
    text = "It is not complete, was changed, or the call no longer exists. Open the link exactly as you received it."
    return _page(404, link_page.problem("This link is not valid", text))


def _unavailable(error: StoreError) -> Response:
    log.error("the page of a link cannot be shown: %s", error)
    text = "The server cannot read its approvals now, and nothing was decided. Try again soon."
    return _page(503, link_page.problem("Try again soon", text))


def _page(status: int, content: str) -> Response:
    from starlette.responses import HTMLResponse

    headers = {
        "Content-Security-Policy": link_page.POLICY,
        "Referrer-Policy": "same-origin",  # with "no-referrer", browsers hide the origin of the form from us as well
        "X-Robots-Tag": "noindex, nofollow",
    }
    return HTMLResponse(content, status, headers)
