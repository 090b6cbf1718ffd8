"""Access rules of a channel: who may talk to the agent, and who may approve calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from ..stores.mailbox import Mailbox
from ..stores.messages import InboundMessage
from ..stores.pairing import create_code, is_paired
from . import notices


class AccessDecision(msgspec.Struct, frozen=True):
    """Whether a message is accepted; if not, the reason for the log and the reply to the sender."""

    allowed: bool
    reason: Literal["", "no mention", "not allowed", "pairing code sent", "pairing code pending"] = ""
    reply: str = ""


ALLOWED = AccessDecision(True)


class Access:
    """The access rules of one channel.

    Example::

        Access(allow=["12345"], pairing=True, approve=["12345"])

    Args:
        allow: the senders who may talk. ``None`` allows everyone, unless ``pairing`` is on.
        pairing: send other people a code in a direct message; they may talk once an operator has approved it.
        mention: ignore group messages that do not mention the bot.
        approve: the senders who may decide about calls that wait for approval; ``"*"`` for everyone who may talk.

    Raises:
        TypeError: ``allow`` or ``approve`` is not a list of strings.
    """

    def __init__(
        self,
        allow: Iterable[str] | None = None,
        *,
        pairing: bool = False,
        mention: bool = True,
        approve: Iterable[str] = (),
    ) -> None:
        self._allow = None if allow is None else _senders("allow", allow)
        self.approve = _senders("approve", approve)
        self._pairing = pairing
        self._mention = mention

    def may_approve(self, sender: str, *, always: bool = False) -> bool:
        """Whether an accepted sender may decide about calls.

        Args:
            sender: the platform's id of the sender.
            always: whether the decision is permanent. That affects other conversations too, so ``"*"`` does not permit
                it: the sender must be listed.
        """
        return sender in self.approve - {"*"} or ("*" in self.approve and not always)

    async def check(self, channel: str, message: InboundMessage, mailbox: Mailbox) -> AccessDecision:
        """Decide whether a message is accepted. An unknown sender may get a pairing code."""
        if self._mention and not message.direct and not message.mentioned:
            return AccessDecision(False, "no mention")
        if self._allow is None and not self._pairing:
            return ALLOWED
        if self._allow is not None and message.sender in self._allow:
            return ALLOWED
        if not self._pairing or not message.sender:
            return AccessDecision(False, "not allowed")
        if await mailbox.transact(lambda db: is_paired(db, channel, message.sender)):
            return ALLOWED
        if not message.direct:
            return AccessDecision(False, "not allowed")
        code = await mailbox.transact(lambda db: create_code(db, channel, message.sender))
        if code is None:
            return AccessDecision(False, "pairing code pending")
        return AccessDecision(False, "pairing code sent", notices.pairing(code))


def _senders(name: str, senders: Iterable[str]) -> frozenset[str]:
    if isinstance(senders, str):
        raise TypeError(f"{name} must be a list of senders, such as [{senders!r}], not {senders!r}")
    found = frozenset(senders)
    if wrong := [sender for sender in found if not isinstance(sender, str)]:
        raise TypeError(f"{name}: senders must be strings, such as {str(wrong[0])!r}, not {wrong[0]!r}")
    return found
