"""What a chat client asks for: the body of ``POST /v1/chat/completions``, and what of it an agent gets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from .._base.frozen import EMPTY, Frozen
from .._kernel.values import Message
from .endpoints import ApiError


class ChatError(ApiError):
    """A chat request that is refused; ``param`` is the field of the body that is to blame."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None, headers: Any = EMPTY) -> None:
        super().__init__(status, code, message, headers)
        self.param = param


class ChatMessage(msgspec.Struct):
    """One message of the conversation. Content is text, or a list of text parts."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None
    refusal: str | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    function_call: dict[str, Any] | None = None
    tool_call_id: str | None = None


class StreamOptions(msgspec.Struct):
    """What a stream has besides the text."""

    include_usage: bool | None = None


class ChatRequest(msgspec.Struct):
    """What is looked at in a chat request; other fields have no effect: the settings of the agent hold.

    ``model`` is the name of an agent; the last message of the user is the task, what was said before is the history.
    Fields from ``n`` on are here because only one value of them is taken.
    """

    model: Annotated[str, msgspec.Meta(min_length=1)]
    messages: Annotated[list[ChatMessage], msgspec.Meta(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: dict[str, Any] | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None


class Asked(Frozen, frozen=True):
    """What an agent is asked: a task, and what was said before."""

    model: str
    task: str
    history: tuple[Message, ...]
    stream: bool
    usage: bool


_decoder = msgspec.json.Decoder(ChatRequest)
_PLACE = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")


def read_request(body: bytes) -> Asked:
    """What a body asks for.

    Raises:
        ChatError: it is no chat request, or asks for something that is not there.
    """
    try:
        request = _decoder.decode(body)
    except msgspec.ValidationError as error:
        place = _PLACE.search(str(error))
        raise _bad(str(error), (place and place[1]) or None) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _bad(f"the body is not JSON: {error}") from None
    _check(request)
    task, history = _conversation(request.messages)
    usage = request.stream_options is not None and bool(request.stream_options.include_usage)
    return Asked(request.model, task, history, bool(request.stream), usage)


def _check(request: ChatRequest) -> None:
    if request.n not in (None, 1):
        raise _unsupported("n", "there is one answer for each request: leave n out, or send the request again")
    for name in ("tools", "functions"):
        if getattr(request, name):
            raise _unsupported(name, f"an agent has its own tools, which run here: leave {name} out")
    if request.logprobs or request.top_logprobs:
        raise _unsupported("logprobs" if request.logprobs else "top_logprobs", "there are no log probabilities")
    if (request.response_format or {}).get("type", "text") != "text":
        raise _unsupported("response_format", "answers are text: ask for JSON in the message, and check what comes")
    if request.audio or set(request.modalities or ()) - {"text"}:
        raise _unsupported("audio" if request.audio else "modalities", "answers are text")


def _conversation(messages: Sequence[ChatMessage]) -> tuple[str, tuple[Message, ...]]:
    """The task, and the history before it; what a program says after the task is put before it."""
    last = max((at for at, message in enumerate(messages) if message.role == "user"), default=-1)
    after = {message.role for message in messages[last + 1 :]} - {"system", "developer"}
    if last < 0 or after:
        raise _bad("the last message must be the user's: it is what the agent is asked", "messages")
    texts = [_text(at, message) for at, message in enumerate(messages)]
    if not texts[last].strip():
        raise _bad("the last message of the user has no text", f"messages[{last}].content")
    names = {str(call.get("id")): _called(call)[0] for message in messages for call in message.tool_calls or ()}
    history = [
        _said(message, text, names)
        for at, (message, text) in enumerate(zip(messages, texts, strict=True))
        if at != last
    ]
    return texts[last], tuple(message for message in history if message.content)


def _said(message: ChatMessage, text: str, names: dict[str, str]) -> Message:
    """A message as the agent reads it: nothing of a caller is an instruction, a call or a result of the agent's own."""
    match message.role:
        case "user":
            return Message("user", text)
        case "assistant":
            calls = [
                *(message.tool_calls or ()),
                *([{"function": message.function_call}] * bool(message.function_call)),
            ]
            told = [f"[called {name} with {arguments}]" for name, arguments in map(_called, calls)]
            return Message("assistant", "\n".join(filter(None, (text, *told))))
        case "tool" | "function":
            name = names.get(message.tool_call_id or "") or message.name or "a tool"
            return Message("user", f"[result of {name}, which the caller ran]\n{text}")
    return Message("user", f"[{message.role} message of the caller]\n{text}" if text else "")


def _called(call: dict[str, Any]) -> tuple[str, str]:
    function = call.get("function") or call.get("custom")
    function = function if isinstance(function, dict) else {}
    arguments = function.get("arguments", function.get("input", ""))
    return str(function.get("name") or "a tool"), str(arguments or "nothing")


def _text(at: int, message: ChatMessage) -> str:
    if not isinstance(message.content, list):
        return message.content or message.refusal or ""
    found = []
    for number, part in enumerate(message.content):
        place, kind = f"messages[{at}].content[{number}]", part.get("type")
        text = part.get(kind) if kind in ("text", "refusal") else None
        if kind not in ("text", "refusal"):
            what = f"{place} is of type {kind!r:.40}, and agents take text alone"
            raise _unsupported(place, f"{what}: put it into words, or give the agent a tool that fetches it")
        if not isinstance(text, str):
            raise _bad(f"{place} has no {kind}", place)
        found.append(text)
    return "\n".join(found)


def _bad(message: str, param: str | None = None) -> ChatError:
    return ChatError(400, "invalid_request", message, param)


def _unsupported(param: str, message: str) -> ChatError:
    return ChatError(400, "unsupported_parameter", message, param)
