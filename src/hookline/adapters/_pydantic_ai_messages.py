"""Requests and replies of pydantic-ai as messages of Hookline, and back.

A request of pydantic-ai is a list of messages that consist of parts; a part of a request is one message of Hookline, a
response is one with all its parts. What no hook changed goes back exactly as it came, because parts carry more than a
message does: timestamps, thinking, files, ids of the provider.
"""

# pyright: reportMissingImports=false, reportPossiblyUnboundVariable=false
# The frameworks are not installed together, so their names are unknown to the type checker.
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from operator import attrgetter
from typing import Any

from .._base.attachment import UNKNOWN, Attachment
from .._base.frozen import thaw
from .._kernel.values import Message, ModelResponse, ToolCall, Usage
from ._translation import Reader, file_of, files_in, without_removed


class Conversation:
    """The messages of one model call: for hooks, and for the model after hooks changed them.

    Args:
        instructions: the instructions of the agent, which are not part of the history.
        history: the messages of pydantic-ai.
        reader: the reader of the run (:func:`reader`).
    """

    def __init__(self, instructions: str, history: Sequence[Any], reader: Reader) -> None:
        self._history = list(history)
        self._instructions = Message("system", instructions) if instructions else None
        self._reading = reader.read(self._history)
        head = () if self._instructions is None else (self._instructions,)
        self.messages = self._reading.messages.after(*head)
        """The messages, the instructions first."""

    @cached_property
    def _parts(self) -> list[tuple[Message, int, Any]]:
        """Each message without the instructions, the index of the message in the history, and its part in that."""
        pairs = zip(self._history, self._reading.each, strict=False)
        return [
            (message, index, part)
            for index, (original, messages) in enumerate(pairs)
            for message, part in zip(messages, _parts_of(original), strict=True)
        ]

    def restore(self, messages: Sequence[Message]) -> tuple[str | None, list[Any]]:
        """Return instructions and history for messages. The instructions are ``None`` if they are unchanged."""
        if messages is self.messages:
            return None, self._history
        instructions = None
        if self._instructions is not None:
            if messages and messages[0].role == "system":
                instructions = None if messages[0] == self._instructions else messages[0].content
                messages = messages[1:]
            else:
                instructions = ""
        elif messages and messages[0].role == "system" and not self._starts_with_system():
            instructions, messages = messages[0].content, messages[1:]
        if len(messages) == len(self._parts) and all(map(_same, messages, self._parts)):
            return instructions, self._history
        return instructions, self._rebuild(messages)

    def _starts_with_system(self) -> bool:
        return bool(self._parts) and self._parts[0][0].role == "system"

    def _rebuild(self, messages: Sequence[Message]) -> list[Any]:
        from pydantic_ai.messages import ModelRequest

        known = {id(entry[0]): entry for entry in self._parts}
        present = {id(message) for message in messages}
        history: list[Any] = []
        parts: list[Any] = []  # of the request that is being built
        source: int | None = None  # the message of the original history that it replaces

        def close() -> None:
            nonlocal parts, source
            if parts:
                container = self._history[source] if source is not None else ModelRequest(parts=[])
                history.append(replace(container, parts=parts))
            parts, source = [], None

        for index, message in enumerate(messages):
            entry = known.get(id(message)) or next((entry for entry in self._parts if entry[0] == message), None)
            if message.role == "assistant":
                close()
                history.append(entry[2] if entry else new_response(message.content, message.tool_calls))
                continue
            if entry and source is not None and entry[1] != source:
                close()
            if entry:
                source = entry[1]
                parts.append(entry[2])
            else:
                replaced = self._parts[index] if index < len(self._parts) else None
                parts.append(_new_part(message, replaced if replaced and id(replaced[0]) not in present else None))
        close()
        return history


def reader() -> Reader:
    """Return a reader for the messages of pydantic-ai. Each part of a request becomes a message of its own."""
    return Reader(lambda history: (list(map(_fields, history)),), _read)


_PART_FIELDS = {
    "text": attrgetter("part_kind", "content"),
    "tool-call": attrgetter("part_kind", "tool_name", "args", "tool_call_id"),
    "tool-return": attrgetter("part_kind", "tool_name", "content", "tool_call_id", "outcome"),
    "system-prompt": attrgetter("part_kind", "content"),
    "user-prompt": attrgetter("part_kind", "content"),
}


def _fields(message: Any) -> Any:
    """Return all that :func:`_read` looks at in a message."""
    return message.kind, [_PART_FIELDS.get(part.part_kind, _other_fields)(part) for part in message.parts]


def _other_fields(part: Any) -> Any:
    """Return what identifies a part of another kind: feedback, whose text can depend on any value, is read again."""
    return part if hasattr(part, "model_response") else part.part_kind


def _parts_of(message: Any) -> Sequence[Any]:
    return (message,) if message.kind == "response" else message.parts


def _read(message: Any) -> Iterator[Message]:
    if message.kind == "response":
        yield _response_message(message)
    else:
        yield from map(_part_message, message.parts)


def _same(message: Message, entry: tuple[Message, int, Any]) -> bool:
    return message is entry[0] or message == entry[0]


def _response_message(response: Any) -> Message:
    return Message("assistant", text_of(response), tuple(calls_of(response)))


def text_of(response: Any) -> str:
    """Return the text of a response."""
    return "".join(part.content for part in response.parts if part.part_kind == "text")


def calls_of(response: Any) -> list[ToolCall]:
    """Return the tool calls of a response. Calls of native tools are not among them: the provider runs these."""
    return [
        ToolCall(part.tool_call_id, part.tool_name, {} if part.args is None else part.args)
        for part in response.parts
        if part.part_kind == "tool-call"
    ]


def _part_message(part: Any) -> Message:
    kind = part.part_kind
    if kind == "tool-return":
        text = part.model_response_str(wrap_if_error=False)
        failed, files = part.outcome in ("failed", "retried"), files_in(part.files, read_file)
        return Message("tool", text, (), part.tool_call_id, part.tool_name, failed, attachments=files)
    if kind == "system-prompt":
        return Message("system", part.content)
    if kind == "user-prompt":
        return Message("user", user_text(part.content), attachments=files_of(part.content))
    described = getattr(part, "model_response", None)  # feedback about a reply that pydantic-ai could not use
    return Message("user", described() if described else "")


def user_text(content: Any) -> str:
    """Return the text in the content of a user's message. Files have none."""
    if isinstance(content, str):
        return content
    texts = [item if isinstance(item, str) else getattr(item, "content", None) for item in content]
    return "\n".join(text for text in texts if isinstance(text, str))


def files_of(content: Any) -> tuple[Attachment, ...]:
    """Return the files in the content of a user's message."""
    return () if isinstance(content, str) else files_in(content, read_file)


def read_file(item: Any) -> Attachment | None:
    """Return the file in a piece of content."""
    data, url = getattr(item, "data", None), getattr(item, "url", None)
    if not isinstance(data, bytes) and not isinstance(url, str):
        return None
    try:
        kind = str(item.media_type)
    except ValueError:  # pydantic-ai cannot tell from the URL
        kind = UNKNOWN
    return file_of(kind, data) if isinstance(data, bytes) else file_of(kind, url=str(url))


def _content(message: Message, originals: Iterable[Any]) -> Any:
    """Return the content of a message that a hook changed: its text, the files that it still has, and new ones."""
    from pydantic_ai.messages import BinaryContent, ImageUrl

    files = [item for item in originals if read_file(item) is not None]
    kept = without_removed(files, message.attachments, read_file)
    known = {file.digest for file in files_in(files, read_file)}
    for file in message.attachments:
        if file.digest not in known:
            kept.append(ImageUrl(file.url) if file.url else BinaryContent(file.data, media_type=file.media_type))
    return [message.content, *kept] if kept else message.content


def _new_part(message: Message, replaced: tuple[Message, int, Any] | None) -> Any:
    """Return the part of a message that a hook wrote, with the files of the one in its place."""
    from pydantic_ai.messages import SystemPromptPart, ToolReturnPart, UserPromptPart

    original = replaced[2] if replaced and replaced[0].role == message.role else None
    if message.role == "system":
        return SystemPromptPart(message.content)
    if message.role == "tool":
        if original is not None and original.tool_call_id == message.call_id:
            return replace(original, content=_content(message, original.files))
        return ToolReturnPart(message.name or "", _content(message, ()), message.call_id or "")
    if original is not None and original.part_kind == "user-prompt":
        items = () if isinstance(original.content, str) else original.content
        return replace(original, content=_content(message, items))
    return UserPromptPart(_content(message, ()))


def read_reply(response: Any, model: str, outputs: frozenset[str]) -> ModelResponse:
    """Return a response of pydantic-ai as one of Hookline.

    Args:
        response: the response.
        model: the name of the model, unless the response says it.
        outputs: the names of output tools. A call of one is no tool call: its arguments are the final reply.
    """
    calls = tuple([call for call in calls_of(response) if call.name not in outputs])
    found = _output_calls(response, outputs)
    if len(found) == 1 and not calls:
        content = found[0].args_as_json_str()
    else:  # pydantic-ai may use one of several outputs, and the output beside other calls
        content = "\n".join(filter(None, [text_of(response), *[part.args_as_json_str() for part in found]]))
    used = response.usage
    usage = Usage(used.input_tokens, used.output_tokens, used.cache_read_tokens)
    reason = {"tool_call": "tool_calls", "error": "other"}.get(response.finish_reason or "", response.finish_reason)
    return ModelResponse(
        content,
        calls,
        usage,
        reason or ("tool_calls" if calls else "stop"),
        model=response.model_name or model,
        provider=response.provider_name or "",
    )


def _output_calls(response: Any, outputs: frozenset[str]) -> list[Any]:
    """Return the calls of output tools in a response."""
    return [part for part in response.parts if part.part_kind == "tool-call" and part.tool_name in outputs]


def new_response(
    content: str, calls: Sequence[ToolCall], original: Any = None, outputs: frozenset[str] = frozenset()
) -> Any:
    """Return a response with other text and calls.

    Thinking is dropped: providers refuse thinking next to text that it did not lead to. Files and calls of native tools
    stay, because they have already happened. If the original only called one output tool, the text is its arguments.
    """
    from pydantic_ai import messages

    parts: list[Any] = []
    found: list[Any] = []
    if original is not None:
        parts += [part for part in original.parts if part.part_kind not in ("text", "thinking", "tool-call")]
        found = _output_calls(original, outputs)
        if any(part.tool_name not in outputs for part in original.parts if part.part_kind == "tool-call"):
            found = []
    if len(found) == 1 and not calls:
        parts.append(replace(found[0], args=content))
    elif content:
        parts.append(messages.TextPart(content))
    for call in calls:
        arguments: Any = thaw(call.arguments) if call.raw is None else call.raw
        parts.append(messages.ToolCallPart(call.name, arguments, call.id))
    return replace(original, parts=parts) if original is not None else messages.ModelResponse(parts=parts)


def plain_settings(settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the model settings that are plain JSON values. Hooks see and change only these."""
    return {name: value for name, value in (settings or {}).items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(name, str) and _is_plain(item) for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (str, int, float, bool))
