"""Between the requests, replies and tool results of Microsoft Agent Framework and Hookline's."""

# pyright: reportMissingImports=false, reportPossiblyUnboundVariable=false
# The frameworks are not installed together, so their names are unknown to the type checker.
from __future__ import annotations

import copy
from base64 import b64decode
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from .._base.attachment import Attachment
from .._base.frozen import freeze, thaw
from .._kernel.payloads import ModelReply, ModelRequest, ToolCallResult
from .._kernel.values import Message, ModelResponse, ToolCall, ToolSpec, Usage
from ..tools._tool import jsonable
from ._translation import Columns, Group, Reader, ToolSpecs, Transcript, file_of, files_in, without_removed

try:
    from agent_framework import ChatResponse, ChatResponseUpdate, Content, FunctionTool
    from agent_framework import Message as ChatMessage
except ImportError:
    pass  # the adapter says which version to install

_NOT_PARAMS = frozenset(
    ("tools", "tool_choice", "instructions", "response_format", "model", "conversation_id", "metadata", "user", "store")
)
_FINISH_REASONS = frozenset(("stop", "length", "tool_calls", "content_filter"))
_MERGED = frozenset(("tool",))


class ChatRequest:
    """The request of one model call: as Agent Framework has it, and as hooks see it.

    Args:
        context: the ``ChatContext`` of Agent Framework.
        reader: the reader of the run (:func:`reader`).
    """

    def __init__(self, context: Any, reader: Reader) -> None:
        self._options: Mapping[str, Any] = context.options or {}
        reading = reader.read(context.messages)
        self._transcript = Transcript(reading, _split)
        self._specs = reader.specs
        instructions = self._options.get("instructions")
        self._instructions = Message("system", instructions) if instructions else None
        self._tools = {tool.name: tool for tool in self._options.get("tools") or () if hasattr(tool, "parameters")}
        self._choice = self._options.get("tool_choice")
        system = (self._instructions,) if self._instructions is not None else ()
        self.request = ModelRequest(
            reading.messages.after(*system),
            tuple([_tool_spec(tool, self._specs) for tool in self._tools.values()]),
            self._options.get("model") or getattr(context.client, "model", None) or type(context.client).__name__,
            tool_choice=_read_choice(self._choice),
            params=_params(self._options),
        )

    def write(self, request: ModelRequest, context: Any) -> None:
        """Put a request after the hooks into the context of Agent Framework."""
        given, options = self.request, dict(self._options)
        if request.messages is not given.messages:
            messages = list(request.messages)
            if messages and messages[0].role == "system" and not self._transcript.contains(messages[0]):
                options["instructions"] = messages.pop(0).content
            else:
                options.pop("instructions", None)
            groups = self._transcript.restore(messages, _build_parts, _MERGED)
            context.messages = [_message(group) for group in groups]
        if request.model != given.model:
            options["model"] = request.model
        if request.tools != given.tools:
            known = [tool for tool in self._options.get("tools") or () if not hasattr(tool, "parameters")]
            options["tools"] = [*known, *[self._tool(spec) for spec in request.tools]]
        if request.tool_choice != given.tool_choice:
            options["tool_choice"] = _write_choice(request.tool_choice)
        if request.params != given.params:
            for name in given.params:
                options.pop(name, None)
            options.update(thaw(request.params))
        context.options = options

    def _tool(self, spec: ToolSpec) -> Any:
        known = self._tools.get(spec.name)
        if known is not None and _tool_spec(known, self._specs) == spec:
            return known
        return FunctionTool(name=spec.name, description=spec.description, input_model=thaw(spec.parameters), func=None)


def provider_tool(tool: Any) -> str | None:
    """Return the name of a tool that the provider runs; ``None`` for the declaration of a function."""
    about = tool if isinstance(tool, Mapping) else getattr(tool, "__dict__", {})
    kind = about.get("type")
    if kind == "function":
        return None
    return str(about.get("name") or kind or next(iter(about), type(tool).__name__))


def read_reply(response: Any, model: str) -> ModelResponse:
    """Return the response in a ``ChatResponse``."""
    text, calls = _text_and_calls(_contents(response))
    counted: Mapping[str, Any] = response.usage_details or {}
    cached = counted.get("cache_read_input_token_count") or 0
    usage = Usage(counted.get("input_token_count") or 0, counted.get("output_token_count") or 0, cached)
    reason = response.finish_reason if response.finish_reason in _FINISH_REASONS else ""
    return ModelResponse(
        text, calls, usage, reason or ("tool_calls" if calls else "stop"), model=response.model or model
    )


def write_reply(reply: ModelReply, received: Any | None) -> Any:
    """Return the ``ChatResponse`` for a reply after the hooks.

    Args:
        reply: the settled reply.
        received: the response that the reply was made of, or ``None`` if a hook wrote it.
    """
    contents = [] if received is None else _contents(received)
    text, calls = _text_and_calls(contents)
    if received is not None and reply.content == text and reply.tool_calls == calls:
        return received
    message = _message(_build_parts(Message("assistant", reply.content, reply.tool_calls), contents))
    if received is None:
        return ChatResponse(messages=[message])
    changed = copy.copy(received)
    changed.messages = [message]
    return changed


def text_response(text: str) -> Any:
    """Return a ``ChatResponse`` with this text."""
    return ChatResponse(messages=[ChatMessage(role="assistant", contents=[text])])


def text_update(text: str, template: Any, message_id: str) -> Any:
    """Return an update with this text, like another update of the same reply.

    ``message_id`` is used if the reply has no id: texts of different replies must not become one message.
    """
    if template is None:
        return ChatResponseUpdate(role="assistant", contents=[Content.from_text(text)], message_id=message_id)
    update = copy.copy(template)
    update.contents = [Content.from_text(text)]
    update.message_id = update.message_id or message_id
    return update


def without_text(update: Any) -> Any | None:
    """Return an update without its text, or ``None`` if nothing else is in it."""
    others = [content for content in update.contents if content.type != "text"]
    if not others:
        return None
    if len(others) == len(update.contents):
        return update
    changed = copy.copy(update)
    changed.contents = others
    return changed


def call_updates(response: Any) -> list[Any]:
    """Return updates with the calls in a response that hooks changed. Its text has been shown."""
    calls = [content for content in _contents(response) if content.type == "function_call"]
    return [ChatResponseUpdate(role="assistant", contents=calls)] if calls else []


def continuation(response: Any, note: str) -> list[Any]:
    """Return the messages of a response, and a note of the user."""
    return [*response.messages, *([ChatMessage(role="user", contents=[note])] if note else [])]


def reply_text(response: Any) -> str | None:
    """Return the text of the last message of an agent's response."""
    return response.messages[-1].text if response is not None and response.messages else None


def with_reply(response: Any, text: str) -> Any:
    """Return an agent's response with another text in its last message."""
    changed = copy.copy(response)
    last = response.messages[-1] if response.messages else None
    others = [content for content in last.contents if content.type != "text"] if last is not None else []
    message = ChatMessage(role="assistant", contents=[*others, Content.from_text(text)])
    changed.messages = [*response.messages[:-1], message]
    return changed


def task_and_history(messages: Sequence[Any]) -> tuple[str, Sequence[Message]]:
    """Return the text of the last user message, and the messages before it."""
    last = max((i for i, message in enumerate(messages) if message.role == "user"), default=len(messages))
    return messages[last].text if last < len(messages) else "", reader().read(messages[:last]).messages


def arguments_of(arguments: Any) -> Any:
    """Return the arguments of a function as JSON."""
    return jsonable(arguments.model_dump(mode="json") if hasattr(arguments, "model_dump") else dict(arguments))


def text_of(update: Any) -> str:
    """Return the text of an update."""
    return _text_and_calls(update.contents)[0]


def read_result(result: Any) -> Any:
    """Return the result of a function as JSON or text."""
    if isinstance(result, list) and result and all(hasattr(item, "type") for item in result):
        return "\n".join([item.text for item in result if item.type == "text"])
    return result


def write_result(result: ToolCallResult, received: Any) -> Any:
    """Return the result of a function after the hooks."""
    if result.error is None and result.result == jsonable(read_result(received)):
        return received
    return result.text


def reader() -> Reader:
    """Return a reader for the messages of Agent Framework. Each function result in one becomes a message of its own."""
    return Reader(_fields, lambda given: map(_read, _split(given)))


_FILE_FIELDS = attrgetter("type", "uri", "media_type")
_CONTENT_FIELDS = attrgetter(
    "type", "text", "call_id", "name", "arguments", "informational_only", "hosted", "result", "exception", "uri",
    "media_type",
)  # fmt: skip


def _fields(messages: Sequence[Any]) -> Columns:
    """Return all that :func:`_read` looks at in messages."""
    contents = [content for message in messages for content in message.contents]
    return (
        [(message.role, len(message.contents)) for message in messages],
        list(map(_CONTENT_FIELDS, contents)),
        [items and list(map(_FILE_FIELDS, items)) for content in contents for items in (content.items,)],
    )


def _split(message: Any) -> list[Group]:
    """Return the contents of a message of Agent Framework: each function result, and all else."""
    role, contents = message.role, list(message.contents)
    if role == "assistant":
        return [Group(role, contents, message)]
    results = [Group(role, [content], message) for content in contents if content.type == "function_result"]
    others = [content for content in contents if content.type != "function_result"]
    return [*results, Group(role, others, message)] if others or not contents else results


def _read(group: Group) -> Message:
    if group.role == "assistant":
        text, calls = _text_and_calls(group.parts)
        return Message("assistant", text, calls)
    content = group.parts[0] if group.parts else None
    if content is None or content.type != "function_result":
        text, files = _text_and_calls(group.parts)[0], files_in(group.parts, _file)
        return Message("system" if group.role == "system" else "user", text, attachments=files)
    result = jsonable(content.result)
    return Message(
        "tool",
        result if isinstance(result, str) else str(result),
        (),
        content.call_id,
        None,
        content.exception is not None,
        attachments=files_in(content.items or (), _file),
    )


def _build_parts(message: Message, before: Sequence[Any]) -> Group:
    text = [Content.from_text(message.content)] if message.content else []
    if message.role == "tool":
        items = [item for content in before for item in content.items or () if item.type != "text"]
        result = [*text, *without_removed(items, message.attachments, _file)]
        failed = "Error" if message.is_error else None
        return Group("tool", [Content.from_function_result(message.call_id or "", result=result, exception=failed)])
    kept = [content for content in before if content.type not in ("text", "function_call")]
    if message.role == "user":
        kept = without_removed(kept, message.attachments, _file)
    calls = [
        Content.from_function_call(call_id=call.id, name=call.name, arguments=thaw(call.arguments))
        for call in message.tool_calls
    ]
    return Group(message.role, [*kept, *text, *calls])


def _file(content: Any) -> Attachment | None:
    """Return the file in a content."""
    if content.type not in ("data", "uri") or not content.uri:
        return None
    head, _, data = content.uri.partition(";base64,")
    if data and head.startswith("data:"):
        return file_of(content.media_type or "", b64decode(data))
    return file_of(content.media_type or "", url=content.uri)


def _message(group: Group) -> Any:
    if group.source is not None and group.parts == list(group.source.contents):
        return group.source
    return ChatMessage(role=group.role, contents=group.parts)


def _contents(response: Any) -> list[Any]:
    return [content for message in response.messages for content in message.contents]


def _text_and_calls(contents: Sequence[Any]) -> tuple[str, tuple[ToolCall, ...]]:
    text = "".join([content.text for content in contents if content.type == "text" and content.text])
    made = [
        content
        for content in contents
        if content.type == "function_call" and not (content.informational_only or content.hosted)
    ]
    return text, tuple([ToolCall(call.call_id or "", call.name, call.arguments or {}) for call in made])


def _tool_spec(tool: Any, specs: ToolSpecs) -> ToolSpec:
    return specs.spec(tool.name, tool.description or "", tool.parameters())


def _params(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the model that hooks can change: those that are JSON."""
    found = {}
    for name, value in options.items():
        if name in _NOT_PARAMS or value is None:
            continue
        try:
            found[name] = freeze(value)
        except (TypeError, ValueError):
            continue
    return found


def _read_choice(choice: Any) -> str | None:
    if isinstance(choice, Mapping):
        return choice.get("required_function_name") or _read_choice(choice.get("mode"))
    return None if choice in (None, "auto") else str(choice)


def _write_choice(choice: str | None) -> Any:
    if choice in (None, "auto", "none", "required"):
        return choice or "auto"
    return {"mode": "required", "required_function_name": choice}
