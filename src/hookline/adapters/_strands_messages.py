"""Between the requests, replies and tool results of Strands and Hookline's."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .._base.attachment import UNKNOWN, Attachment
from .._base.frozen import json_text, parse_object, thaw
from .._kernel.errors import HooklineError
from .._kernel.payloads import ModelReply, ModelRequest, ToolCallResult
from .._kernel.values import Message, ModelResponse, ToolCall, ToolSpec, Usage
from ._translation import Group, Reader, ToolSpecs, Transcript, file_of, files_in, split_system, without_removed

_FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "content_filtered": "content_filter",
    "guardrail_intervened": "content_filter",
}
_STOP_REASONS = {"length": "max_tokens", "content_filter": "content_filtered"}
_DOCUMENTS = {
    "pdf": "application/pdf",
    "csv": "text/csv",
    "html": "text/html",
    "txt": "text/plain",
    "md": "text/markdown",
}
_MERGED = frozenset(("user",))  # some providers reject two user messages in a row


class StrandsRequest:
    """The request of one model call: as Strands has it, and as hooks see it.

    Args:
        context: the ``InvokeModelContext`` of Strands.
        reader: the reader of the run (:func:`reader`).
    """

    def __init__(self, context: Any, reader: Reader) -> None:
        self._context = context
        reading = reader.read(context.messages)
        self._transcript = Transcript(reading, _split)
        self._system = _system_text(context.system_prompt)
        self._specs = reader.specs
        self._tools = {spec["name"]: spec for spec in context.tool_specs}
        system = (Message("system", self._system),) if self._system else ()
        self.request = ModelRequest(
            reading.messages.after(*system),
            tuple([_tool_spec(spec, self._specs) for spec in context.tool_specs]),
            _model_name(context.model),
            tool_choice=_read_choice(context.tool_choice),
        )

    def context(self, request: ModelRequest) -> Any:
        """Return the context of Strands for a request after the hooks."""
        given = self.request
        changes: dict[str, Any] = {}
        if request.messages is not given.messages:
            system, messages = split_system(request.messages)
            if system != self._system:
                changes["system_prompt"] = system or None
            groups = self._transcript.restore(messages, _build_parts, _MERGED)
            changes["messages"] = [_message(group) for group in groups]
        if request.tools != given.tools:
            changes["tool_specs"] = [self._spec(tool) for tool in request.tools]
        if request.tool_choice != given.tool_choice:
            changes["tool_choice"] = _write_choice(request.tool_choice)
        if request.params:
            changes["model"] = _with_params(self._context.model, thaw(request.params))
        return self._context.replace(**changes)

    def _spec(self, tool: ToolSpec) -> Any:
        known = self._tools.get(tool.name)
        if known is not None and _tool_spec(known, self._specs) == tool:
            return known
        return {"name": tool.name, "description": tool.description, "inputSchema": {"json": thaw(tool.parameters)}}


def read_reply(stop: Any, model: Any, outputs: frozenset[str] = frozenset()) -> ModelResponse:
    """Return the response in a ``ModelStopReason`` of Strands.

    Args:
        stop: the event.
        model: the model of Strands.
        outputs: the names of the tools for structured output. A call of one is no tool call: its input is the reply.
    """
    text, calls = _reply_in(stop.message["content"], outputs)
    usage = stop.usage
    cached = usage.get("cacheReadInputTokens", 0)
    total = usage["inputTokens"]
    if total + usage["outputTokens"] != usage["totalTokens"]:  # the provider counts cached tokens separately
        total += cached + usage.get("cacheWriteInputTokens", 0)
    return ModelResponse(
        text,
        calls,
        Usage(total, usage["outputTokens"], cached),
        "stop" if stop.stop_reason == "tool_use" and not calls else _FINISH_REASONS.get(stop.stop_reason, "other"),
        model=_model_name(model),
    )


def _reply_in(blocks: Sequence[Any], outputs: frozenset[str]) -> tuple[str, tuple[ToolCall, ...]]:
    """Return the text of a reply and its calls. The text includes the input of tools for structured output as JSON."""
    text, calls = _text_and_calls(blocks)
    given = [json_text(call.arguments) for call in calls if call.name in outputs]
    others = tuple([call for call in calls if call.name not in outputs])
    return "\n".join(filter(None, [text, *given])), others


def write_reply(reply: ModelReply, received: Any | None, outputs: frozenset[str] = frozenset()) -> tuple[str, Any]:
    """Return the stop reason and the message of Strands for a reply after the hooks.

    Args:
        reply: the settled reply.
        received: the ``ModelStopReason`` that the reply was made of, or ``None`` if a hook wrote it.
        outputs: the names of the tools for structured output.
    """
    blocks = [] if received is None else received.message["content"]
    text, calls = _reply_in(blocks, outputs)
    if received is not None and reply.content == text and reply.tool_calls == calls:
        return received.stop_reason, received.message
    content, output_calls = _split_outputs(reply.content, blocks, outputs)
    calls = (*output_calls, *reply.tool_calls)
    message = Message("assistant", content, calls)
    reason = "tool_use" if calls else _STOP_REASONS.get(reply.finish_reason, "end_turn")
    return reason, {"role": "assistant", "content": _build_parts(message, blocks).parts}


def _split_outputs(content: str, blocks: Sequence[Any], outputs: frozenset[str]) -> tuple[str, tuple[ToolCall, ...]]:
    """Return the text and the calls of tools for structured output in a changed reply to which they belonged.

    If the last lines of the reply are no JSON objects for them, there are no such calls any more.
    """
    before = [call for call in _text_and_calls(blocks)[1] if call.name in outputs]
    lines = content.split("\n")
    texts, changed = lines[: -len(before)], lines[-len(before) :]
    values = [parse_object(line) for line in changed]
    if not before or len(changed) < len(before) or not all(changed) or any(raw is not None for _, raw in values):
        return content, ()
    calls = [ToolCall(call.id, call.name, value) for call, (value, _) in zip(before, values, strict=True)]
    return "\n".join(texts), tuple(calls)


def read_result(result: Mapping[str, Any]) -> Any:
    """Return the content of a tool result: one JSON value, or text."""
    parts = result["content"]
    if len(parts) == 1 and "json" in parts[0]:
        return parts[0]["json"]
    return _result_text(parts)


def write_result(result: ToolCallResult, call_id: str, received: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the tool result of Strands for a result after the hooks.

    Args:
        result: the settled result.
        call_id: the id of the call in Strands.
        received: the result that the tool returned, or ``None`` if it did not run.
    """
    failed = result.error is not None
    if received is not None and failed == (received["status"] == "error"):
        same = result.error == _result_text(received["content"]) if failed else result.result == read_result(received)
        if same:
            return {**received, "toolUseId": call_id}
    others = [part for part in received["content"] if not _is_data(part)] if received else []
    return {
        "toolUseId": call_id,
        "status": "error" if failed else "success",
        "content": [{"text": result.text}, *others],
    }


def reader() -> Reader:
    """Return a reader for the messages of Strands. Each tool result in one becomes a message of its own."""
    return Reader(lambda given: (given,), lambda given: map(_read, _split(given)))


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message."""
    return _text_and_calls(message["content"])[0]


def set_text(message: Any, text: str) -> None:
    """Replace the text of a message in place."""
    message["content"] = [{"text": text}, *[block for block in message["content"] if "text" not in block]]


def result_text(result: Mapping[str, Any]) -> str:
    """Return the text of a tool result."""
    return _result_text(result["content"])


def user_text(messages: Sequence[Mapping[str, Any]] | None) -> str:
    """Return the text of the last user message, the task of a run."""
    for message in reversed(messages or ()):
        if message["role"] == "user":
            return _text_and_calls(message["content"])[0]
    return ""


def _split(message: Any) -> list[Group]:
    """Return the blocks of a message of Strands: each tool result, and all else."""
    role, blocks = message["role"], message["content"]
    if role == "assistant":
        return [Group(role, blocks, message)]
    results = [Group(role, [block], message) for block in blocks if "toolResult" in block]
    others = [block for block in blocks if "toolResult" not in block]
    return [*results, Group(role, others, message)] if others or not blocks else results


def _read(group: Group) -> Message:
    if group.role == "assistant":
        text, calls = _text_and_calls(group.parts)
        return Message("assistant", text, calls)
    result = group.parts[0].get("toolResult") if group.parts else None
    if result is None:
        return Message("user", _text_and_calls(group.parts)[0], attachments=files_in(group.parts, _file))
    return Message(
        "tool",
        _result_text(result["content"]),
        (),
        result["toolUseId"],
        None,
        result["status"] == "error",
        attachments=files_in(result["content"], _file),
    )


def _build_parts(message: Message, before: Sequence[Any]) -> Group:
    text = [{"text": message.content}] if message.content else []
    if message.role == "tool":
        old = before[0]["toolResult"]["content"] if before else ()
        kept = [part for part in without_removed(old, message.attachments, _file) if not _is_data(part)]
        status = "error" if message.is_error else "success"
        result = {"toolUseId": message.call_id, "status": status, "content": [*text, *kept]}
        return Group("user", [{"toolResult": result}])
    kept = [block for block in before if "text" not in block and "toolUse" not in block]
    if message.role != "assistant":
        kept = without_removed(kept, message.attachments, _file)
    if message.role == "assistant":
        uses = [
            {"toolUse": {"toolUseId": call.id, "name": call.name, "input": thaw(call.arguments)}}
            for call in message.tool_calls
        ]
        return Group("assistant", [*kept, *text, *uses] or [{"text": ""}])
    return Group("user", [*text, *kept] or [{"text": ""}])


def _message(group: Group) -> dict[str, Any]:
    if group.source is not None and group.parts == group.source["content"]:
        return dict(group.source)
    source = group.source if group.source is not None else {}
    return {**source, "role": group.role, "content": group.parts}


def _text_and_calls(blocks: Sequence[Any]) -> tuple[str, tuple[ToolCall, ...]]:
    text = "".join([block["text"] for block in blocks if "text" in block])
    uses = [block["toolUse"] for block in blocks if "toolUse" in block]
    return text, tuple([ToolCall(use["toolUseId"], use["name"], use["input"]) for use in uses])


def _is_data(part: Mapping[str, Any]) -> bool:
    return "text" in part or "json" in part


def _file(block: Mapping[str, Any]) -> Attachment | None:
    """Return the image, document or video in a block."""
    for kind in ("image", "document", "video"):
        if (file := block.get(kind)) is not None:
            source, form = file["source"], str(file.get("format", ""))
            media_type = _DOCUMENTS.get(form, UNKNOWN) if kind == "document" else f"{kind}/{form}"
            url = str(source.get("location", {}).get("uri", ""))
            return file_of(media_type, source.get("bytes"), url, str(file.get("name", "")))
    return None


def _result_text(parts: Sequence[Any]) -> str:
    return "\n".join([_part_text(part) for part in parts if _is_data(part)])


def _part_text(part: Mapping[str, Any]) -> str:
    return part["text"] if "text" in part else json.dumps(part["json"])


def _system_text(prompt: Any) -> str:
    if isinstance(prompt, list):
        return "\n".join([block["text"] for block in prompt if "text" in block])
    return prompt or ""


def _tool_spec(spec: Mapping[str, Any], specs: ToolSpecs) -> ToolSpec:
    schema = spec["inputSchema"]
    return specs.spec(spec["name"], spec["description"], schema.get("json", schema))


def _read_choice(choice: Any) -> str | None:
    if not choice or "auto" in choice:
        return None
    return "required" if "any" in choice else choice["tool"]["name"]


def _write_choice(choice: str | None) -> Any:
    if choice == "none":
        raise HooklineError("Strands cannot forbid tool calls with tool_choice: remove the tools from the request")
    if choice in (None, "auto"):
        return None
    return {"any": {}} if choice == "required" else {"tool": {"name": choice}}


def _model_name(model: Any) -> str:
    config = model.get_config()
    name = config.get("model_id") if isinstance(config, Mapping) else None
    return name or type(model).__name__


def _with_params(model: Any, params: dict[str, Any]) -> Any:
    """Return the model with further settings, for one call. The names are those of the model's ``update_config``."""
    config = getattr(model, "config", None)
    if not isinstance(config, dict):
        raise HooklineError(f"{type(model).__name__} has no settings that could be changed for one call")
    changed = copy.copy(model)
    changed.config = dict(config)
    changed.update_config(**params)
    return changed


def provider_tools(model: Any) -> Iterator[str]:
    """Yield the names of the tools in the settings of a model, which the provider runs."""
    config = model.get_config()
    if not isinstance(config, Mapping):
        return
    params = config.get("params")
    given = [*(config.get("anthropic_tools") or ()), *(config.get("gemini_tools") or ())]
    for tool in [*given, *((isinstance(params, Mapping) and params.get("tools")) or ())]:
        about = tool if isinstance(tool, Mapping) else tool.model_dump(exclude_none=True)
        if about.get("type") != "function":
            yield str(about.get("name") or about.get("type") or next(iter(about), "unknown"))
