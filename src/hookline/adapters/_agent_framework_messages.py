"""Between the requests, replies and tool results of Microsoft Agent Framework and Hookline's."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from .._base.frozen import freeze, thaw
from .._kernel.errors import HooklineError
from .._kernel.payloads import ModelReply, ModelRequest, ToolCallResult
from .._kernel.values import Message, ModelResponse, ToolCall, ToolSpec, Usage
from ..tools._tool import jsonable
from ._translation import Group, Transcript

_NOT_PARAMS = frozenset(
    ("tools", "tool_choice", "instructions", "response_format", "model", "conversation_id", "metadata", "user", "store")
)
_FINISH_REASONS = frozenset(("stop", "length", "tool_calls", "content_filter"))
_MERGED = frozenset(("tool",))


class ChatRequest:
    """The request of one model call: as Agent Framework has it, and as hooks see it.

    Args:
        context: the ``ChatContext`` of Agent Framework.
    """

    def __init__(self, context: Any) -> None:
        self._options: Mapping[str, Any] = context.options or {}
        self._transcript = Transcript()
        names: dict[str, str] = {}
        for message in context.messages:
            _read_message(self._transcript, message, names)
        instructions = self._options.get("instructions")
        self._instructions = Message("system", instructions) if instructions else None
        self._tools = {tool.name: tool for tool in self._options.get("tools") or () if hasattr(tool, "parameters")}
        self._choice = self._options.get("tool_choice")
        system = (self._instructions,) if self._instructions is not None else ()
        self.request = ModelRequest(
            (*system, *self._transcript.messages),
            tuple([_tool_spec(tool) for tool in self._tools.values()]),
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
        if request.response_format is not None:
            raise HooklineError("Agent Framework cannot change the response format for one call: use options=")
        context.options = options

    def _tool(self, spec: ToolSpec) -> Any:
        known = self._tools.get(spec.name)
        if known is not None and _tool_spec(known) == spec:
            return known
        from agent_framework import FunctionTool

        return FunctionTool(name=spec.name, description=spec.description, input_model=thaw(spec.parameters), func=None)


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
    from agent_framework import ChatResponse

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
    from agent_framework import ChatResponse
    from agent_framework import Message as FrameworkMessage

    return ChatResponse(messages=[FrameworkMessage(role="assistant", contents=[text])])


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


def user_text(messages: Sequence[Any]) -> str:
    """Return the text of the last user message, the task of a run."""
    return next((message.text for message in reversed(messages) if message.role == "user"), "")


def _read_message(transcript: Transcript, message: Any, names: dict[str, str]) -> None:
    """Add a message of Agent Framework. Each function result in it becomes a message of its own."""
    role, contents = message.role, list(message.contents)
    if role == "assistant":
        text, calls = _text_and_calls(contents)
        names.update((call.id, call.name) for call in calls)
        transcript.add(Message("assistant", text, calls), role, contents, message)
        return
    others = []
    for content in contents:
        if content.type != "function_result":
            others.append(content)
            continue
        text = jsonable(content.result)
        read = Message(
            "tool",
            text if isinstance(text, str) else str(text),
            (),
            content.call_id,
            names.get(content.call_id),
            content.exception is not None,
        )
        transcript.add(read, role, [content], message)
    if others or not contents:
        read = Message("system" if role == "system" else "user", _text_and_calls(others)[0])
        transcript.add(read, role, others, message)


def _build_parts(message: Message, before: Sequence[Any]) -> Group:
    from agent_framework import Content

    text = [Content.from_text(message.content)] if message.content else []
    if message.role == "tool":
        failed = "Error" if message.is_error else None
        return Group(
            "tool", [Content.from_function_result(message.call_id or "", result=message.content, exception=failed)]
        )
    kept = [content for content in before if content.type not in ("text", "function_call")]
    calls = [
        Content.from_function_call(call_id=call.id, name=call.name, arguments=thaw(call.arguments))
        for call in message.tool_calls
    ]
    return Group(message.role, [*kept, *text, *calls])


def _message(group: Group) -> Any:
    from agent_framework import Message as FrameworkMessage

    if group.source is not None and group.parts == list(group.source.contents):
        return group.source
    return FrameworkMessage(role=group.role, contents=group.parts)


def _contents(response: Any) -> list[Any]:
    return [content for message in response.messages for content in message.contents]


def _text_and_calls(contents: Sequence[Any]) -> tuple[str, tuple[ToolCall, ...]]:
    text = "".join([content.text for content in contents if content.type == "text" and content.text])
    made = [content for content in contents if content.type == "function_call" and not (content.informational_only or content.hosted)]
    return text, tuple([ToolCall(call.call_id or "", call.name, call.arguments or {}) for call in made])


def _tool_spec(tool: Any) -> ToolSpec:
    return ToolSpec(tool.name, tool.description or "", jsonable(tool.parameters()))


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
