"""``/approve/TOKEN``: decide about a waiting call with a signed link, without a key."""

from __future__ import annotations

import os
from collections.abc import Callable

from .._kernel.errors import RegistrationError
from ..config.errors import ConfigError
from ..hooks.approval_links import PATH, ApprovalLinks
from ..hooks.approvals import Notifier
from ..stores.approvals import ApprovalRow, ApprovalStore
from .auth import PUBLIC
from .logs import log_approval_request
from .options import LinkOptions, ServerOptions
from .routing import Endpoint, ResponseSpec

HTML = "text/html"

_ABOUT = """The token is the permission: it is signed, for one call with these arguments, until the call expires, and it
works once. It needs no key."""


def build_links(options: ServerOptions, store: ApprovalStore) -> ApprovalLinks | None:
    """Return the links that the options describe; ``None`` if there are none.

    Raises:
        ConfigError: the secret is not set, or an option has a wrong value.
    """
    given = options.approval_links
    if given is None:
        return None
    try:
        return ApprovalLinks(
            store,
            secret=_secret(given),
            url=options.public_url,
            webhook=given.webhook,
            people=given.people,
            private=given.private,
        )
    except RegistrationError as error:
        raise ConfigError(f"server.approval_links: {error}") from None


def _secret(options: LinkOptions) -> str:
    if not options.secret.startswith("env:"):
        return options.secret
    name = options.secret.removeprefix("env:")
    found = os.environ.get(name, "")
    if not found:
        raise ConfigError(
            f"server.approval_links.secret is read from the environment variable {name}, which is not set"
        )
    return found


def notifier(links: ApprovalLinks | None) -> Notifier:
    """Return the function that announces a waiting call: in the log, and with links if there are any."""
    if links is None:
        return log_approval_request

    async def announce(row: ApprovalRow) -> None:
        await log_approval_request(row)
        await links(row)

    return announce


class LinksApi:
    """The pages of signed links.

    Args:
        links: makes and checks the links.
        url: returns the URL of the server, for links without a public URL.
    """

    def __init__(self, links: ApprovalLinks, url: Callable[[], str]) -> None:
        self._links = links
        self._url = url

    async def open(self) -> None:
        """Set the address of the links, which is known once the server listens."""
        self._links.url = self._links.url or self._url()

    async def close(self) -> None:
        """Do nothing: the links have no background work."""

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints."""
        expired = (
            ResponseSpec(404, "The link is not valid.", media=HTML),
            ResponseSpec(410, "The link has expired.", media=HTML),
        )
        return [
            Endpoint(
                "GET",
                PATH,
                self._links.show,
                PUBLIC,
                "show_approval_link",
                "Show the call that a link is for",
                media=HTML,
                responses=expired,
                description=f"{_ABOUT} Opening it decides nothing.",
            ),
            Endpoint(
                "POST",
                PATH,
                self._links.decide,
                PUBLIC,
                "use_approval_link",
                "Approve or deny a call with a link",
                media=HTML,
                responses=(
                    *expired,
                    ResponseSpec(403, "A policy does not let this person approve the call.", media=HTML),
                    ResponseSpec(409, "The call was decided before.", media=HTML),
                ),
                description=f"{_ABOUT} The form has `decision` (`approve` or `deny`) and, for `deny`, a `message`.",
            ),
        ]
