"""LiteLLM's generic guardrail API: the texts of a request or a response, as questions to the hooks.

LiteLLM sends the texts of the messages in one list and takes changed texts back in the same order. It takes no other
change, so whatever else the hooks decide blocks the request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from ..._kernel.payloads import ModelReply, ModelRequest, ToolCallRequest
from ..._kernel.points import AFTER_LLM, BEFORE_LLM, BEFORE_TOOL
from ..._kernel.values import Message, ToolCall, ToolSpec
from ..._run.environment import make_id
from ..errors import ApiError
from .answers import Allow, Answer, Answered, Ask, End, KeepGoing, Retry
from .questions import Asked

WAIT_SECONDS = 5.0
"""Seconds that a call waits for people: LiteLLM waits a little longer for its guardrails."""
_ROLES: dict[str, Literal["system", "user", "assistant", "tool"]] = {
    "system": "system",
    "developer": "system",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


class GuardrailRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What LiteLLM sends. Fields that are not listed here are ignored: each version adds some."""

    input_type: Literal["request", "response"]
    litellm_call_id: str | None = None
    litellm_trace_id: str | None = None
    model: str | None = None
    texts: list[str] | None = None
    structured_messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None


class GuardrailAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What LiteLLM does now. ``texts`` take the place of those of the request."""

    action: Literal["NONE", "BLOCKED", "GUARDRAIL_INTERVENED"]
    blocked_reason: str | None = None
    texts: list[str] | None = None


Judge = Callable[[Asked], Awaitable[Answer]]
"""Judges a question."""


class _BlockedError(Exception):
    """The request or the response is blocked, with this reason."""


async def judge(given: GuardrailRequest, ask: Judge) -> GuardrailAnswer:
    """Judge what LiteLLM sends. A conversation of LiteLLM is a session."""
    session = (given.litellm_trace_id or given.litellm_call_id or make_id("litellm"))[:200]
    texts = given.texts or []
    try:
        judged = await (_request if given.input_type == "request" else _response)(given, texts, session, ask)
    except _BlockedError as blocked:
        return GuardrailAnswer("BLOCKED", str(blocked))
    return GuardrailAnswer("NONE") if judged == texts else GuardrailAnswer("GUARDRAIL_INTERVENED", texts=judged)


async def _request(given: GuardrailRequest, texts: list[str], session: str, ask: Judge) -> list[str]:
    messages = _messages(texts, given.structured_messages or [])
    try:
        tools = tuple(_tools(given.tools or []))
    except (TypeError, ValueError) as error:
        raise ApiError(422, "bad_field", f"tools: {error}") from None
    request = ModelRequest(messages, tools, given.model or "")
    judged: Any = _allowed(await ask(Asked(BEFORE_LLM, session, request)))
    same = [(each.role, each.tool_calls, each.call_id) for each in judged.messages]
    if same != [(each.role, each.tool_calls, each.call_id) for each in messages]:
        raise _BlockedError("A hook added or removed messages, which LiteLLM cannot do.")
    if (judged.tools, judged.model) != (tools, request.model) or judged.params or judged.response_format is not None:
        raise _BlockedError("A hook changed more than the texts of the request, which LiteLLM cannot do.")
    return [each.content for each in judged.messages]


async def _response(given: GuardrailRequest, texts: list[str], session: str, ask: Judge) -> list[str]:
    try:
        calls = tuple([ToolCall.of(_call(each)) for each in given.tool_calls or ()])
    except (TypeError, ValueError) as error:
        raise ApiError(422, "bad_field", f"tool_calls: {error}") from None
    found = []
    for index, text in enumerate(texts or [""]):
        own = calls if index == 0 else ()
        reply = ModelReply(text, own, model=given.model or "")
        judged: Any = _allowed(await ask(Asked(AFTER_LLM, session, reply)))
        if tuple(judged.tool_calls) != own:
            raise _BlockedError("A hook changed the tool calls of the reply, which LiteLLM cannot do.")
        found.append(judged.content)
    for call in calls:
        request = ToolCallRequest(call.id, call.name, call.arguments, raw=call.raw)
        judged = _allowed(await ask(Asked(BEFORE_TOOL, session, request, wait=WAIT_SECONDS)))
        if (judged.name, judged.arguments) != (call.name, call.arguments):
            raise _BlockedError(f"A hook changed the arguments of {call.name}, which LiteLLM cannot do.")
    if not texts and found != [""]:
        raise _BlockedError("A hook gave the reply a text, which LiteLLM cannot do.")
    return found if texts else []


def _allowed(answer: Answer) -> Any:
    """Return the payload of an answer that lets LiteLLM go on."""
    if isinstance(answer, Allow):
        return answer.payload
    if isinstance(answer, Ask):
        raise _BlockedError("This call needs an approval, and nobody has given it yet.")
    if isinstance(answer, Answered):
        raise _BlockedError(f"A hook answered instead of the model: {answer.reason or answer.by}".rstrip(": "))
    if isinstance(answer, (Retry, KeepGoing)):
        raise _BlockedError(answer.note or f"Rejected by {answer.by}.")
    raise _BlockedError((answer.reply if isinstance(answer, End) else answer.reason) or f"Blocked by {answer.by}.")


def _messages(texts: Sequence[str], rows: Sequence[dict[str, Any]]) -> tuple[Message, ...]:
    """Return a message for each text, with the role of the row that it comes from, if that is certain."""
    found = [(row, text) for row in rows for text in _texts_of(row)]
    if [text for _, text in found] != list(texts):
        return tuple([Message("user", text) for text in texts])
    return tuple([_message(row, text) for row, text in found])


def _texts_of(row: dict[str, Any]) -> Iterator[str]:
    """Yield the texts of a row as LiteLLM does."""
    content = row.get("content")
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        yield from (part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))


def _message(row: dict[str, Any], text: str) -> Message:
    role, call_id, name = _ROLES.get(str(row.get("role")), "user"), row.get("tool_call_id"), row.get("name")
    return Message(
        role,
        text,
        call_id=call_id if isinstance(call_id, str) else None,
        name=name if isinstance(name, str) else None,
    )


def _tools(rows: Sequence[dict[str, Any]]) -> Iterator[ToolSpec]:
    """Yield the tools that have a name; those of a vendor have none."""
    for row in rows:
        function = row.get("function")
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            yield ToolSpec(function["name"], function.get("description") or "", function.get("parameters") or {})


def _call(row: dict[str, Any]) -> dict[str, Any]:
    """Return a tool call without what LiteLLM adds to those of OpenAI."""
    function = row.get("function")
    if not isinstance(function, dict):
        raise TypeError("a tool call has no function")
    return {
        "id": row.get("id") or make_id("call"),
        "name": function.get("name") or "",
        "arguments": function.get("arguments"),
    }
