"""Who may talk to the agent, and when a group does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from ..stores.mailbox import Mailbox
from ..stores.messages import InboundMessage
from ..stores.pairing import create_code, is_paired
from . import notices


class Verdict(msgspec.Struct, frozen=True):
    """Whether a message is let in; if not, why, and what the sender is told."""

    admitted: bool
    why: Literal["", "no mention", "not allowed", "a code was given", "has a code, or too many are open"] = ""
    reply: str = ""


ADMITTED = Verdict(True)


class Access:
    """The rules of one channel.

    Args:
        allow: the senders who may; ``None`` for everybody, unless there is ``pairing``.
        pairing: others get a code in a direct message, and may when it was approved.
        mention: in a group, only messages that name the bot count.
        approve: the senders who may decide about calls that wait for approval; ``"*"``: everybody who may talk.

    Raises:
        TypeError: ``allow`` or ``approve`` is no list of texts.
    """

    def __init__(
        self, allow: Iterable[str] | None = None, *, pairing: bool = False, mention: bool = True,
        approve: Iterable[str] = (),
    ) -> None:  # fmt: skip
        self._allow = None if allow is None else _senders("allow", allow)
        self.approve = _senders("approve", approve)
        self._pairing, self._mention = pairing, mention

    def may_approve(self, sender: str, *, always: bool = False) -> bool:
        """Whether a sender who was let in may decide about calls.

        Args:
            sender: as the platform says.
            always: for good, which holds in the conversations of others too: who is named may, ``"*"`` is not enough.
        """
        return sender in self.approve - {"*"} or ("*" in self.approve and not always)

    async def judge(self, channel: str, message: InboundMessage, mailbox: Mailbox) -> Verdict:
        """Whether a message is let in. Who is not known may get a code here."""
        if self._mention and not message.direct and not message.mentioned:
            return Verdict(False, "no mention")
        if self._allow is None and not self._pairing:
            return ADMITTED
        if self._allow is not None and message.sender in self._allow:
            return ADMITTED
        if not self._pairing or not message.sender:
            return Verdict(False, "not allowed")
        if await mailbox.transact(lambda db: is_paired(db, channel, message.sender)):
            return ADMITTED
        if not message.direct:
            return Verdict(False, "not allowed")
        code = await mailbox.transact(lambda db: create_code(db, channel, message.sender))
        if code is None:
            return Verdict(False, "has a code, or too many are open")
        return Verdict(False, "a code was given", notices.pairing(code))


def _senders(name: str, given: Iterable[str]) -> frozenset[str]:
    if isinstance(given, str):
        raise TypeError(f"{name} is a list of senders, such as [{given!r}], not {given!r}")
    senders = frozenset(given)
    if odd := [sender for sender in senders if not isinstance(sender, str)]:
        raise TypeError(f"{name}: senders are texts, such as {str(odd[0])!r}, not {odd[0]!r}")
    return senders
