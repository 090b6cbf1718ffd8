"""Posting to a URL that may be reached, at the address that was judged."""

from __future__ import annotations

from collections.abc import Mapping

from .._base.workers import in_thread
from .egress import Egress
from .http_client import Cutoff, Reply, ask


async def post(egress: Egress, url: str, body: bytes, *, headers: Mapping[str, str], seconds: float) -> Reply:
    """Post and say what the server answered; redirects are not followed, and the answer's body is not read.

    Args:
        egress: judges the URL, and the addresses that it leads to.
        url: the whole URL.
        body: what to post.
        headers: with its type.
        seconds: how long everything together may take; being cancelled closes the connection too.

    Raises:
        EgressError: the URL or an address may not be reached.
        FetchError: it does not answer, or not in time.
    """
    cutoff = Cutoff(seconds)

    def work() -> Reply:
        with cutoff:
            where = egress.judge(url)
            addresses = egress.resolve(where) if where.address else cutoff.bounded(egress.resolve, where)
            return ask(
                where, addresses, headers=headers, cutoff=cutoff, tls=egress.tls, max_bytes=0,
                wanted=lambda response: False, send=body,
            )  # fmt: skip

    try:
        reply: Reply = await in_thread(work)
        return reply
    finally:
        cutoff.cut("nobody waits for it any more")
