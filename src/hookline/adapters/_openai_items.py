"""Requests and replies of the OpenAI Agents SDK as messages of Hookline, and back.

The SDK's input is a list of items in the format of OpenAI's Responses API; one message of Hookline is one item or
several (a reply with its tool calls). What no hook changed goes back exactly as it came, because items carry more
than a message does: ids, reasoning, images, calls of hosted tools.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from .._base.attachment import UNKNOWN, Attachment
from .._base.frozen import json_text
from .._kernel.values import Message, ModelResponse, ToolCall, Usage
from ._translation import Reader, file_of, files_in, without_removed

_MODEL_SIDE = frozenset(("function_call", "reasoning"))
"""Types of items that the model wrote, and that belong to the reply they are next to."""
_USER_SIDE = frozenset(("user", "system", "developer"))
"""Roles of messages that the model did not write."""


class Conversation:
    """The input of one model call: its messages for hooks, and the items for a changed list of messages.

    Example::

        conversation = Conversation("Be brief.", [{"role": "user", "content": "Hello"}])
        conversation.messages          # (Message("system", "Be brief."), Message("user", "Hello"))
        conversation.restore(messages)  # ("Be brief.", [{"role": "user", "content": "Hello"}])
    """

    def __init__(self, instructions: str | None, given: str | Sequence[Any], reader: Reader) -> None:
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        self._head = (Message("system", instructions),) if instructions else ()
        self._reading = reader.read(_grouped(items))
        self.messages = self._reading.messages.after(*self._head)
        """The messages, the instructions first."""

    def restore(self, messages: Sequence[Message]) -> tuple[str | None, list[Any]]:
        """Return instructions and items for messages: the original items where a message is unchanged."""
        if messages is self.messages and (self._head or not messages or messages[0].role != "system"):
            return self._head[0].content if self._head else None, list(chain(*self._reading.originals))
        instructions = None
        if messages and messages[0].role == "system":
            instructions, messages = messages[0].content, messages[1:]
        originals = list(zip(self._reading.messages, self._reading.originals, strict=True))
        known = {id(message): items for message, items in originals}
        present = {id(message) for message in messages}
        items: list[Any] = []
        for index, message in enumerate(messages):
            same = known.get(id(message))
            if same is None:
                same = next((parts for original, parts in originals if original == message), None)
            if same is not None:
                items += same
                continue
            replaced, parts = originals[index] if index < len(originals) else (message, [])
            if replaced.role == message.role == "user" and parts and id(replaced) not in present:
                items.append(_with_text(parts[0], message))
            else:
                items += new_items(message)
        return instructions, items


def reader() -> Reader:
    """Return a reader for the items of the SDK, of which one or several in a row become a message."""
    return Reader(lambda groups: (groups,), _read)


def _grouped(items: Iterable[Any]) -> list[list[Any]]:
    """Return the items of each message."""
    groups: list[list[Any]] = []
    reply: list[Any] | None = None
    for item in items:
        kind, role = item.get("type", "message"), item.get("role")
        if role == "assistant" or kind in _MODEL_SIDE or kind.endswith("_call"):
            if reply is None or (role == "assistant" and any(part.get("type") != "reasoning" for part in reply)):
                groups.append(reply := [])
            reply.append(item)
            continue
        reply = None
        if groups and kind != "function_call_output" and (kind != "message" or role not in _USER_SIDE):
            groups[-1].append(item)  # an output of a hosted tool, or a reference to an item: it stays where it is
        else:
            groups.append([item])
    return groups


def _read(items: Sequence[Any]) -> Iterator[Message]:
    first = items[0]
    kind, role = first.get("type", "message"), first.get("role")
    if kind == "function_call_output":
        output = first["output"]
        yield Message("tool", text_of(output), (), first["call_id"], attachments=files_of(output))
    elif kind == "message" and role in _USER_SIDE:
        content = first["content"]
        yield Message("user" if role == "user" else "system", text_of(content), attachments=files_of(content))
    elif role == "assistant" or kind in _MODEL_SIDE or kind.endswith("_call"):
        text = "\n".join(text_of(item.get("content", "")) for item in items if item.get("role") == "assistant")
        calls = [
            ToolCall(item["call_id"], item["name"], item["arguments"] or "{}")
            for item in items
            if item.get("type") == "function_call"
        ]
        yield Message("assistant", text, tuple(calls))
    else:
        yield Message("user", "")


def text_of(content: Any) -> str:
    """Return the text in the content of an item. Images and files have none."""
    if isinstance(content, str):
        return content
    parts = [part for part in content or () if isinstance(part, Mapping)]
    return "\n".join(
        str(part.get("text", part.get("refusal", ""))) for part in parts if "text" in part or "refusal" in part
    )


def files_of(content: Any) -> tuple[Attachment, ...]:
    """Return the files in the content of an item."""
    return () if isinstance(content, str) else files_in(content or (), read_file)


def read_file(part: Any) -> Attachment | None:
    """Return the file in a part of a content or of a tool's output."""
    if not isinstance(part, Mapping):
        return None
    if isinstance(audio := part.get("input_audio"), Mapping):
        return file_of(f"audio/{audio.get('format')}", _decoded(audio.get("data", "")))
    source = part.get("image_url") or part.get("file_data") or part.get("file_url") or part.get("file_id")
    if not isinstance(source, str):
        return None
    name = str(part.get("filename") or "")
    header, comma, data = source.removeprefix("data:").partition(",")
    if comma and header.endswith(";base64"):
        return file_of(header.removesuffix(";base64"), _decoded(data), name=name)
    return file_of("" if "image" in str(part.get("type")) else UNKNOWN, url=source, name=name)


def _decoded(data: str) -> bytes:
    try:
        return base64.b64decode(data)
    except ValueError:  # hooks see what there is; the provider refuses it
        return data.encode()


def _file_part(file: Attachment) -> dict[str, Any]:
    """Return the part of a file that a hook added."""
    image = file.media_type.startswith("image/")
    if file.url:
        return {"type": "input_image", "image_url": file.url} if image else {"type": "input_file", "file_url": file.url}
    source = f"data:{file.media_type};base64,{base64.b64encode(file.data).decode()}"
    if image:
        return {"type": "input_image", "image_url": source}
    return {"type": "input_file", "file_data": source, "filename": file.name or "file"}


def _content(message: Message) -> Any:
    if not message.attachments:
        return message.content
    return [{"type": "input_text", "text": message.content}, *map(_file_part, message.attachments)]


def new_items(message: Message) -> list[Any]:
    """Return the items of a message that a hook wrote."""
    if message.role == "tool":
        return [{"type": "function_call_output", "call_id": message.call_id, "output": _content(message)}]
    items: list[Any] = []
    if message.content or not message.tool_calls:
        items.append({"role": message.role, "content": _content(message)})
    for call in message.tool_calls:
        items.append(
            {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments_text(call)}
        )
    return items


def arguments_text(call: ToolCall) -> str:
    """Return the arguments of a call as the text that the model would have sent."""
    return json_text(call.arguments) if call.raw is None else call.raw


def _with_text(item: Mapping[str, Any], message: Message) -> dict[str, Any]:
    """Return an item of a user as a hook changed it, with the images and files that it still has."""
    content = item.get("content")
    parts = [] if isinstance(content, str) or content is None else content
    kept = without_removed([part for part in parts if part.get("type") != "input_text"], message.attachments, read_file)
    known = {file.digest for file in files_of(content)}
    added = [_file_part(file) for file in message.attachments if file.digest not in known]
    if not kept and not added:
        return {**item, "content": message.content}
    return {**item, "content": [{"type": "input_text", "text": message.content}, *kept, *added]}


def read_reply(response: Any, model: str) -> ModelResponse:
    """Return a reply of the SDK's model as one of Hookline."""
    texts: list[str] = []
    calls: list[ToolCall] = []
    for item in response.output:
        if item.type == "message":
            texts += [str(getattr(part, "text", "") or getattr(part, "refusal", "")) for part in item.content]
        elif item.type == "function_call":
            calls.append(ToolCall(item.call_id, item.name, item.arguments or "{}"))
    used = response.usage
    usage = Usage(used.input_tokens, used.output_tokens, used.input_tokens_details.cached_tokens or 0)
    reason = "tool_calls" if calls else "stop"
    return ModelResponse("".join(texts), tuple(calls), usage, reason, model=model, provider="openai-agents")


def write_output(content: str, calls: Sequence[ToolCall], original: Any = None) -> list[Any]:
    """Return the output items of a reply that a hook changed or wrote.

    Calls and text are written anew, without ids and reasoning: OpenAI refuses an item whose reasoning is missing, and
    reasoning whose item was changed. Calls of hosted tools stay, because they have already happened.
    """
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    hosted = [item for item in original or () if item.type not in ("message", "function_call", "reasoning")]
    items: list[Any] = list(hosted)
    if content or not calls:
        text = ResponseOutputText(text=content, type="output_text", annotations=[])
        items.append(
            ResponseOutputMessage(
                id="msg_hookline", content=[text], role="assistant", status="completed", type="message"
            )
        )
    for call in calls:
        items.append(
            ResponseFunctionToolCall(
                call_id=call.id, name=call.name, arguments=arguments_text(call), type="function_call"
            )
        )
    return items
