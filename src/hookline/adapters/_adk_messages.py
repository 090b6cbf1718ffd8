"""Between the requests, replies and tool results of Google ADK and Hookline's."""

# pyright: reportMissingImports=false, reportPossiblyUnboundVariable=false
# The frameworks are not installed together, so their names are unknown to the type checker.
from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from .._base.attachment import Attachment
from .._base.frozen import json_text, thaw
from .._kernel.errors import HooklineError
from .._kernel.payloads import ModelReply, ModelRequest, ToolCallResult
from .._kernel.values import Message, ModelResponse, ToolCall, ToolSpec, Usage
from ..tools._tool import jsonable
from ._translation import (
    Columns,
    Group,
    Reader,
    ToolSpecs,
    Transcript,
    file_of,
    files_in,
    split_system,
    without_removed,
)

try:
    from google.adk.models.llm_response import LlmResponse
    from google.genai import types
except ImportError:
    pass  # the adapter says which version to install

_CLIENT_ID = "adk-"
"""The beginning of call ids that ADK makes, and removes before it sends them to a model."""
_PARAMS = {"max_tokens": "max_output_tokens", "stop": "stop_sequences"}
_SHOWN_PARAMS = ("temperature", "top_p", "top_k", "max_tokens", "stop", "seed", "presence_penalty", "frequency_penalty")
_FINISH_REASONS = {"STOP": "stop", "MAX_TOKENS": "length", "SAFETY": "content_filter"}
_MODES = {"ANY": "required", "NONE": "none"}
_NOT_MERGED: frozenset[str] = frozenset(("user",))


class AdkRequest:
    """The request of one model call: as ADK has it, and as hooks see it.

    Args:
        llm_request: the ``LlmRequest`` of ADK.
        model: the name of the model that gets it.
        reader: the reader of the run (:func:`reader`).
    """

    def __init__(self, llm_request: Any, model: str, reader: Reader) -> None:
        self._given = llm_request
        config = llm_request.config
        reading = reader.read(llm_request.contents)
        self._transcript = Transcript(reading, _split)
        self._specs = reader.specs
        self._system = _system_text(config.system_instruction)
        self._declarations = {
            declaration.name: declaration
            for tool in config.tools or ()
            for declaration in getattr(tool, "function_declarations", None) or ()
        }
        system = (Message("system", self._system),) if self._system else ()
        self.request = ModelRequest(
            reading.messages.after(*system),
            tuple([_tool_spec(declaration, self._specs) for declaration in self._declarations.values()]),
            llm_request.model or model,
            tool_choice=_read_choice(config.tool_config),
            params={
                name: value for name in _SHOWN_PARAMS if (value := getattr(config, _PARAMS.get(name, name))) is not None
            },
        )

    def llm_request(self, request: ModelRequest) -> Any:
        """Return the request of ADK for a request after the hooks."""
        given = self.request
        changes: dict[str, Any] = {}
        config: dict[str, Any] = {}
        if request.messages is not given.messages:
            system, messages = split_system(request.messages)
            if system != self._system:
                config["system_instruction"] = system or None
            groups = self._transcript.restore(messages, _build_parts, _NOT_MERGED)
            changes["contents"] = [_content(group) for group in groups]
        if request.model != given.model:
            changes["model"] = request.model
        if request.tools != given.tools:
            config["tools"] = self._tools(request.tools)
        if request.tool_choice != given.tool_choice:
            config["tool_config"] = _write_choice(request.tool_choice)
        if request.params != given.params:
            config.update(self._params(thaw(request.params)))
        if config:
            changes["config"] = self._given.config.model_copy(update=config)
        return self._given.model_copy(update=changes) if changes else self._given

    def _tools(self, specs: Sequence[ToolSpec]) -> list[Any]:
        kept = [tool for tool in self._given.config.tools or () if not getattr(tool, "function_declarations", None)]
        declarations = [self._declaration(spec) for spec in specs]
        return [*kept, types.Tool(function_declarations=declarations)] if declarations else kept

    def _declaration(self, spec: ToolSpec) -> Any:
        known = self._declarations.get(spec.name)
        if known is not None and _tool_spec(known, self._specs) == spec:
            return known
        parameters = thaw(spec.parameters)
        return types.FunctionDeclaration(
            name=spec.name, description=spec.description, parameters_json_schema=parameters or None
        )

    def _params(self, params: dict[str, Any]) -> dict[str, Any]:
        fields = type(self._given.config).model_fields
        changed = {_PARAMS.get(name, name): value for name, value in params.items()}
        if unknown := sorted(set(changed) - set(fields)):
            raise HooklineError(f"Google ADK has no setting {unknown[0]!r} for a model call")
        removed = {_PARAMS.get(name, name): None for name in self.request.params if name not in params}
        return {**removed, **changed}


def read_replies(responses: Sequence[Any], model: str) -> ModelResponse:
    """Return the response in the complete (not partial) ``LlmResponse`` objects of one model call."""
    parts = [part for response in responses for part in _parts(response.content)]
    for part in parts:
        if part.function_call is not None and not part.function_call.id:
            part.function_call.id = f"{_CLIENT_ID}{uuid.uuid4()}"  # as ADK does a moment later
    text, calls = _text_and_calls(parts)
    usage, cached, reason, version = Usage(), 0, "", model
    for response in responses:
        if (counted := response.usage_metadata) is not None:
            cached = counted.cached_content_token_count or 0
            output = (counted.candidates_token_count or 0) + (counted.thoughts_token_count or 0)
            usage = Usage(counted.prompt_token_count or 0, output, cached)
        if response.finish_reason is not None:
            reason = _FINISH_REASONS.get(response.finish_reason.name, "other")
        version = response.model_version or version
    return ModelResponse(text, calls, usage, "tool_calls" if calls else reason or "stop", model=version)


def write_replies(reply: ModelReply, received: Sequence[Any]) -> Sequence[Any]:
    """Return the responses of ADK for a reply after the hooks.

    Args:
        reply: the settled reply.
        received: the responses that the reply was made of; none if a hook wrote it.
    """
    parts = [part for response in received for part in _parts(response.content)]
    text, calls = _text_and_calls(parts)
    if received and reply.content == text and reply.tool_calls == calls:
        return received
    content = _content(_build_parts(Message("assistant", reply.content, reply.tool_calls), parts))
    if not received:
        return [LlmResponse(content=content)]
    return [received[-1].model_copy(update={"content": content})]


def text_response(text: str, *, partial: bool | None = None) -> Any:
    """Return a response of ADK with this text."""
    return LlmResponse(content=types.Content(role="model", parts=[types.Part(text=text)]), partial=partial)


def note_response(note: str) -> Any:
    """Return a response of ADK that adds a message of the user to the conversation."""
    return LlmResponse(content=types.Content(role="user", parts=[types.Part(text=note)]))


def reader() -> Reader:
    """Return a reader for contents of ADK. Each function response in one becomes a message of its own.

    ADK removes the ids that it made, so calls and their results have new ones for hooks.
    """
    return Reader(_fields, _read, _CLIENT_ID)


def shown_text(response: Any) -> str:
    """Return the text of a response, without thoughts."""
    return _text_and_calls(_parts(response.content))[0]


def write_result(result: ToolCallResult, received: Any) -> Any:
    """Return what ADK's tool returns, for a result after the hooks."""
    if result.error is not None:
        return {"error": result.error}
    return received if result.result == jsonable(received) else thaw(result.result)


def user_text(content: Any) -> str:
    """Return the text of a message of ADK."""
    return _text_and_calls(_parts(content))[0]


_TEXT_FIELDS = attrgetter("text", "thought")
_CALL_FIELDS = attrgetter("id", "name", "args")
_BLOB_FIELDS = attrgetter("data", "mime_type", "display_name")
_STORED_FIELDS = attrgetter("file_uri", "mime_type", "display_name")


def _fields(contents: Sequence[Any]) -> Columns:
    """Return all that :func:`_read` looks at in contents."""
    parts = [part for content in contents for part in content.parts or ()]
    return (
        [(content.role, len(content.parts or ())) for content in contents],
        list(map(_TEXT_FIELDS, parts)),
        [call and _CALL_FIELDS(call) for part in parts for call in (part.function_call,)],
        *_file_fields(parts),
        [result and _result_fields(result) for part in parts for result in (part.function_response,)],
    )


def _result_fields(result: Any) -> Any:
    return result.id, result.name, result.response, result.parts and _file_fields(result.parts)


def _file_fields(parts: Sequence[Any]) -> Columns:
    return (
        [blob and _BLOB_FIELDS(blob) for part in parts for blob in (part.inline_data,)],
        [stored and _STORED_FIELDS(stored) for part in parts for stored in (part.file_data,)],
    )


def _split(content: Any) -> list[Group]:
    """Return the parts of a content of ADK: each function response, and all else."""
    parts = _parts(content)
    if content.role == "model":
        return [Group("model", parts, content)]
    results = [Group("user", [part], content) for part in parts if part.function_response is not None]
    others = [part for part in parts if part.function_response is None]
    return [*results, Group("user", others, content)] if others or not parts else results


def _read(content: Any) -> Iterator[Message]:
    for group in _split(content):
        text, calls = _text_and_calls(group.parts)
        if group.role == "model":
            yield Message("assistant", text, calls)
        elif group.parts and (response := group.parts[0].function_response) is not None:
            error, text = _read_response(response.response or {})
            files = files_in(response.parts or (), _file)
            yield Message("tool", text, (), response.id or "", response.name, error, attachments=files)
        else:
            yield Message("user", text, attachments=files_in(group.parts, _file))


def _read_response(response: Mapping[str, Any]) -> tuple[bool, str]:
    """Return whether a function response is an error, and its text."""
    if isinstance(response.get("error"), str) and len(response) == 1:
        return True, response["error"]
    value = response["result"] if set(response) == {"result"} else response
    value = jsonable(value)
    return False, value if isinstance(value, str) else json_text(value)


def _build_parts(message: Message, before: Sequence[Any]) -> Group:
    text = [types.Part(text=message.content)] if message.content else []
    if message.role == "tool":
        key = "error" if message.is_error else "result"
        known = next((part.function_response for part in before if part.function_response is not None), None)
        response = types.FunctionResponse(
            id=message.call_id if known is None else known.id,
            name=message.name or (known.name if known is not None else ""),
            response={key: message.content},
            parts=without_removed(known.parts or (), message.attachments, _file) or None if known is not None else None,
        )
        return Group("user", [types.Part(function_response=response)])
    kept = [part for part in before if part.function_call is None and (part.text is None or part.thought)]
    if message.role == "assistant":
        old = {part.function_call.id: part for part in before if part.function_call is not None}
        return Group("model", [*kept, *text, *[_call_part(call, old.get(call.id)) for call in message.tool_calls]])
    return Group("user", [*text, *without_removed(kept, message.attachments, _file)] or [types.Part(text="")])


def _file(part: Any) -> Attachment | None:
    """Return the file in a part."""
    if (blob := part.inline_data) is not None and blob.data is not None:
        return file_of(blob.mime_type or "", blob.data, name=blob.display_name or "")
    if (stored := part.file_data) is not None and stored.file_uri:
        return file_of(stored.mime_type or "", url=stored.file_uri, name=stored.display_name or "")
    return None


def _call_part(call: ToolCall, before: Any) -> Any:
    made = types.FunctionCall(id=call.id, name=call.name, args=thaw(call.arguments))
    if before is None:
        return types.Part(function_call=made)
    return before.model_copy(update={"function_call": made})  # with its thought signature


def _content(group: Group) -> Any:
    if group.source is not None and group.parts == group.source.parts:
        return group.source
    return types.Content(role=group.role, parts=group.parts)


def _parts(content: Any) -> list[Any]:
    return list(content.parts or ()) if content is not None else []


def _text_and_calls(parts: Sequence[Any]) -> tuple[str, tuple[ToolCall, ...]]:
    text = "".join([part.text for part in parts if part.text and not part.thought])
    made = [part.function_call for part in parts if part.function_call is not None]
    return text, tuple([ToolCall(call.id or "", call.name, dict(call.args or {})) for call in made])


def _system_text(instruction: Any) -> str:
    if not instruction or isinstance(instruction, str):
        return instruction or ""
    if isinstance(instruction, (list, tuple)):
        return "\n\n".join([_system_text(part) for part in instruction])
    if hasattr(instruction, "parts"):
        return "\n\n".join([part.text for part in _parts(instruction) if part.text])
    return getattr(instruction, "text", None) or ""


def _tool_spec(declaration: Any, specs: ToolSpecs) -> ToolSpec:
    schema = declaration.parameters_json_schema
    if schema is None and declaration.parameters is not None:
        schema = declaration.parameters.json_schema.model_dump(mode="json", exclude_none=True, by_alias=True)
    return specs.spec(declaration.name, declaration.description or "", schema or {})


def _read_choice(config: Any) -> str | None:
    calling = getattr(config, "function_calling_config", None)
    if calling is None or calling.mode is None:
        return None
    names = calling.allowed_function_names
    return str(names[0]) if names and len(names) == 1 else _MODES.get(calling.mode.name)


def _write_choice(choice: str | None) -> Any:
    if choice in (None, "auto"):
        return None
    mode = {"required": "ANY", "none": "NONE"}.get(choice, "ANY")
    names = None if choice in ("required", "none") else [choice]
    calling = types.FunctionCallingConfig(mode=types.FunctionCallingConfigMode(mode), allowed_function_names=names)
    return types.ToolConfig(function_calling_config=calling)


def provider_tools(llm_request: Any) -> Iterator[str]:
    """Yield the names of the tools in a request that declare no functions: ADK does not call them."""
    for tool in llm_request.config.tools or ():
        about = tool.model_dump(exclude_none=True) if hasattr(tool, "model_dump") else None
        if about is None:  # a Python function or an MCP session, which Google's SDK calls itself
            yield str(getattr(tool, "__name__", type(tool).__name__))
        else:
            yield from sorted(about.keys() - {"function_declarations", "computer_use"})
