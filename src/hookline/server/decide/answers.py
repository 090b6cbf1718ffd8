"""The answers to questions: what the caller must do now.

A caller goes on only if the answer is ``allow``, with the payload in it. An answer that it does not know, an error and
no answer at all mean the same as ``block``.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

Payload = Annotated[Any, msgspec.Meta(extra_json_schema={"type": "object"})]
"""The payload of the hooks, which the API shows in the form of ``SHOWN``."""


class _Answer(msgspec.Struct, frozen=True, kw_only=True, tag_field="action"):
    """What every answer has: the run that the question belongs to."""

    run: str


class Allow(_Answer, frozen=True, kw_only=True, tag="allow"):
    """Go on with ``payload``, which hooks have ``changed`` or not.

    It has the fields of the payload of the question. ``system_prompt`` is what hooks add to the system prompt of a run.
    """

    payload: Payload
    changed: bool = False
    system_prompt: str = ""


class Block(_Answer, frozen=True, kw_only=True, tag="block"):
    """Do not do it. ``reason`` is for the model, ``by`` the hook or the person that decided."""

    reason: str
    by: str = ""


class Answered(_Answer, frozen=True, kw_only=True, tag="answer"):
    """Do not do it: use ``value`` in place of the result of the tool, or of the reply of the model."""

    value: Any
    by: str = ""
    reason: str = ""


class PendingApproval(msgspec.Struct, frozen=True):
    """A call that waits for people: ``POST /approvals/{id}`` with this digest decides about it."""

    id: str
    digest: str
    expires: float
    questions: tuple[str, ...]


class Ask(_Answer, frozen=True, kw_only=True, tag="ask"):
    """Do not do it yet: people must approve it.

    ``GET /decide/{decision}`` waits for them, and returns the answer. An approver may have changed the call.
    """

    decision: str
    approval: PendingApproval


class Retry(_Answer, frozen=True, kw_only=True, tag="retry"):
    """Do not use the reply or the result: call the model or the tool again, and give the model ``note``."""

    note: str
    by: str = ""


class KeepGoing(_Answer, frozen=True, kw_only=True, tag="keep_going"):
    """Do not stop: continue the run with ``note`` as a message of the user."""

    note: str
    by: str = ""


class End(_Answer, frozen=True, kw_only=True, tag="end"):
    """Do not do it, and end the run now, with this reply. The server has ended its run."""

    reply: str
    by: str = ""


class Stop(_Answer, frozen=True, kw_only=True, tag="stop"):
    """Do not do it, and stop the run: a hook, a limit or the stop switch wants that.

    ``payload`` is there if the action has already happened: what the hooks made of its result.
    """

    reason: str
    kind: str
    by: str = ""
    payload: Payload | None = None


Answer = Allow | Block | Answered | Ask | Retry | KeepGoing | End | Stop
