"""Parse the body of ``POST /v1/chat/completions`` into a task and a history for an agent."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from ..._base.attachment import Attachment, AttachmentError, file_part
from ..._base.frozen import EMPTY, Frozen
from ..._kernel.values import Message
from ..errors import ApiError


class ChatError(ApiError):
    """A rejected chat request. ``param`` is the field of the body that caused it."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None, headers: Any = EMPTY) -> None:
        super().__init__(status, code, message, headers)
        self.param = param


class ChatMessage(msgspec.Struct):
    """A message of the conversation. The content is text, or a list of parts: text, and the files of the user."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None
    refusal: str | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    function_call: dict[str, Any] | None = None
    tool_call_id: str | None = None


class StreamOptions(msgspec.Struct):
    """Options for the contents of a stream."""

    include_usage: bool | None = None


class ChatRequest(msgspec.Struct):
    """The fields of a chat request that are used. Others have no effect: the settings of the agent apply.

    ``model`` is the name of an agent. The last user message is the task, the messages before it are the history. The
    fields from ``n`` on are checked, because only one value of each is supported.
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


class ChatTask(Frozen, frozen=True):
    """A task for an agent and the conversation before it."""

    model: str
    task: str
    history: tuple[Message, ...]
    stream: bool
    usage: bool
    attachments: tuple[Attachment, ...] = ()


_decoder = msgspec.json.Decoder(ChatRequest)
_PLACE = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")


def parse_request(body: bytes) -> ChatTask:
    """Parse the body of a request.

    Raises:
        ChatError: the body is not a valid chat request, or uses an unsupported feature.
    """
    try:
        request = _decoder.decode(body)
    except msgspec.ValidationError as error:
        place = _PLACE.search(str(error))
        raise _bad(str(error), (place and place[1]) or None) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _bad(f"the body is not valid JSON: {error}") from None
    _check(request)
    task, attachments, history = _conversation(request.messages)
    usage = request.stream_options is not None and bool(request.stream_options.include_usage)
    return ChatTask(request.model, task, history, bool(request.stream), usage, attachments)


def _check(request: ChatRequest) -> None:
    if request.n not in (None, 1):
        raise _unsupported("n", "each request gets one answer: leave n out, or send the request again")
    for name in ("tools", "functions"):
        if getattr(request, name):
            raise _unsupported(name, f"an agent has its own tools, which run on the server: leave {name} out")
    if request.logprobs or request.top_logprobs:
        raise _unsupported("logprobs" if request.logprobs else "top_logprobs", "log probabilities are not available")
    if (request.response_format or {}).get("type", "text") != "text":
        raise _unsupported("response_format", "answers are text: ask for JSON in the message and check the answer")
    if request.audio or set(request.modalities or ()) - {"text"}:
        raise _unsupported("audio" if request.audio else "modalities", "answers are text")


def _conversation(
    messages: Sequence[ChatMessage],
) -> tuple[str, tuple[Attachment, ...], tuple[Message, ...]]:
    """Return the task, its attachments and its history. System messages after the task are moved before it."""
    last = max((at for at, message in enumerate(messages) if message.role == "user"), default=-1)
    after = {message.role for message in messages[last + 1 :]} - {"system", "developer"}
    if last < 0 or after:
        raise _bad("the last message must have the role user: it is the task for the agent", "messages")
    contents = [_content(at, message) for at, message in enumerate(messages)]
    texts = [text for text, _ in contents]
    if not texts[last].strip() and not contents[last][1]:
        raise _bad("the last user message is empty", f"messages[{last}].content")
    names = {str(call.get("id")): _called(call)[0] for message in messages for call in message.tool_calls or ()}
    history = [
        _history_message(message, text, names, files)
        for at, (message, (text, files)) in enumerate(zip(messages, contents, strict=True))
        if at != last
    ]
    return texts[last], contents[last][1], tuple(each for each in history if each.content or each.attachments)


def _history_message(message: ChatMessage, text: str, names: dict[str, str], files: tuple[Attachment, ...]) -> Message:
    """Convert a message for the agent. Instructions, calls and results of the caller become plain text, so that the
    agent cannot mistake them for its own.
    """
    match message.role:
        case "user":
            return Message("user", text, attachments=files)
        case "assistant":
            calls = [
                *(message.tool_calls or ()),
                *([{"function": message.function_call}] * bool(message.function_call)),
            ]
            called = [f"[called {name} with {arguments}]" for name, arguments in map(_called, calls)]
            return Message("assistant", "\n".join(filter(None, (text, *called))))
        case "tool" | "function":
            name = names.get(message.tool_call_id or "") or message.name or "a tool"
            return Message("user", f"[result of {name}, which the caller ran]\n{text}")
    return Message("user", f"[{message.role} message of the caller]\n{text}" if text else "")


def _called(call: dict[str, Any]) -> tuple[str, str]:
    function = call.get("function") or call.get("custom")
    function = function if isinstance(function, dict) else {}
    arguments = function.get("arguments", function.get("input", ""))
    return str(function.get("name") or "a tool"), str(arguments or "nothing")


def _content(at: int, message: ChatMessage) -> tuple[str, tuple[Attachment, ...]]:
    """Return the text of a message, and the files in it."""
    if not isinstance(message.content, list):
        return message.content or message.refusal or "", ()
    found, files = [], []
    for number, part in enumerate(message.content):
        place, kind = f"messages[{at}].content[{number}]", part.get("type")
        text = part.get(kind) if kind in ("text", "refusal") else None
        if message.role == "user" and (file := _file(part, place)) is not None:
            files.append(file)
            continue
        if kind not in ("text", "refusal"):
            problem = f"{place} is of type {kind!r:.40}, which a message of the role {message.role} cannot have here"
            raise _unsupported(place, f"{problem}: describe it in words, or give the agent a tool that fetches it")
        if not isinstance(text, str):
            raise _bad(f"{place} has no {kind}", place)
        found.append(text)
    return "\n".join(found), tuple(files)


def _file(part: dict[str, Any], place: str) -> Attachment | None:
    try:
        return file_part(part, place)
    except TypeError as error:
        raise _bad(str(error), place) from None
    except AttachmentError as error:
        raise _bad(f"{place}: {error}", place) from None


def _bad(message: str, param: str | None = None) -> ChatError:
    return ChatError(400, "invalid_request", message, param)


def _unsupported(param: str, message: str) -> ChatError:
    return ChatError(400, "unsupported_parameter", message, param)
