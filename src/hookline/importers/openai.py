"""Import chat logs in the formats of OpenAI, which many other systems and proxies use too.

Three kinds of lines are known, and may be mixed:

- a whole conversation: ``{"messages": […]}``, as for fine-tuning;
- a call of the Chat Completions API: ``{"request": {…}, "response": {…}}``, or one object with ``messages`` and
  ``choices``;
- a call of the Responses API: ``{"request": {"input": …}, "response": {"output": …}}``.

Every request repeats the conversation so far. A digest of its messages finds the conversation that it continues, so
that each reply and each tool call is imported once. A message of the user after a final reply begins a new run of the
same session.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from .._kernel.values import Ids
from ..providers.apis.chat_completions import ChatCompletionsApi
from ..providers.apis.common import ParsedReply
from ..providers.apis.responses import ResponsesApi
from .logs import Log, Losses, mapping, open_log, sequence, text, unix_time
from .runs import Call, ImportedRun, Json

SUFFIXES = (".jsonl", ".ndjson", ".json", ".log")
"""The files that are read in folders."""
MAX_OPEN = 20_000
"""Maximum number of conversations that wait for their next request."""
MAX_OPEN_BYTES = 256 << 20
"""Maximum size of the messages of these conversations."""

NO_REPLY = ("cost", "duration")
NO_RESULT = ("outcome", "duration")
NO_END = ("cost", "messages", "steps", "errors")

_REQUESTS, _RESPONSES = ("request", "request_body", "body"), ("response", "response_body", "completion")
_NO_PARAMS = frozenset(
    ("messages", "input", "instructions", "tools", "functions", "model", "stream", "previous_response_id", "choices")
)
_ROLES = {"developer": "system", "function": "tool"}
_CHAT, _RESPONSES_API = ChatCompletionsApi("max_tokens"), ResponsesApi()
_encode = msgspec.json.Encoder(order="sorted").encode


def read(paths: Sequence[str], losses: Losses) -> Iterator[ImportedRun]:
    """Yield the runs of chat logs: one for each message of a user."""
    importer = _Importer(losses)
    for path in paths:
        try:
            with open_log(path, losses) as log:
                for line in log.documents():
                    yield from importer.add(line, log)
        except OSError as error:
            losses.skipped.skip(path, f"the file cannot be read: {error.strerror or error}")
    yield from importer.close()


class _Conversation(msgspec.Struct):
    """A conversation that may continue: all its messages, and the run in progress."""

    id: str
    session: str
    run: ImportedRun
    messages: list[Json]
    runs: int = 1
    size: int = 0
    response_id: str = ""


class _Importer:
    """Joins requests to conversations."""

    def __init__(self, losses: Losses) -> None:
        self.losses = losses
        self._open: OrderedDict[bytes, _Conversation] = OrderedDict()
        self._by_response: dict[str, bytes] = {}
        self._size = 0

    def add(self, line: Json, log: Log) -> Iterator[ImportedRun]:
        """Add a line, and yield the runs that are complete."""
        request = next((mapping(line[name]) for name in _REQUESTS if name in line), line)
        response = next((line[name] for name in _RESPONSES if name in line), line if "choices" in line else None)
        response = mapping(response).get("body", response) if isinstance(response, dict) else response
        if not isinstance(request.get("messages"), list) and "input" not in request:
            log.skip("the line has no messages" if response is None else "the reply has no request")
            return
        raw = sequence(request.get("messages")) or _input_messages(request)
        messages = _normalized(raw, self.losses)
        if not messages:
            log.skip("the line has no messages")
        elif response is None:
            yield from self._whole(line, request, messages, log)
        elif (reply := _read_reply(response, len(messages))) is None:
            failed = "error" in mapping(response) or "error" in line
            if failed:
                self.losses.leave_out("requests that failed")
            else:
                log.skip("the reply cannot be read")
        else:
            yield from self._called(line, request, mapping(response), messages, reply, log)

    def close(self) -> Iterator[ImportedRun]:
        """Yield the runs that are still open."""
        while self._open:
            yield self._evict()

    def _whole(self, line: Json, request: Json, messages: list[Json], log: Log) -> Iterator[ImportedRun]:
        """Yield the runs of a whole conversation."""
        at = _time_of(line)
        ident = _id_of(line, {}, log)
        tools = _tools(request)
        no_request = ("model", "params", *(() if tools else ("tools",)))
        if model := text(request.get("model")):
            no_request = no_request[1:]
        run: ImportedRun | None = None
        runs = 0
        for index, message in enumerate(messages):
            if message["role"] == "user" and (run is None or _is_final(run)):
                if run is not None:
                    yield _finished(run)
                run = _new_run(ident, runs, _session(line) or ident, message["content"], at, messages[:index])
                run.metadata = mapping(line.get("metadata"))
                runs += 1
            if run is None:
                continue  # a system prompt, or a conversation that the assistant opens
            if message["role"] == "assistant":
                run.set_messages(messages[:index])
                run.ask(at, {"model": model}, no_request, tools)
                calls = _calls(message)
                run.reply(
                    at,
                    message.get("content", ""),
                    calls,
                    {"model": model},
                    (*NO_REPLY, "usage", "finish_reason", "model"),
                )
                for call in calls:
                    run.call(at, call)
            elif message["role"] == "tool":
                self._add_result(run, message, at)
        if run is None:
            self.losses.leave_out("conversations without a message of a user")
        else:
            yield _finished(run)

    def _called(
        self, line: Json, request: Json, response: Json, messages: list[Json], reply: ParsedReply, log: Log
    ) -> Iterator[ImportedRun]:
        """Add a call of the API to the conversation that it continues."""
        at = _time_of(line) or _time_of(response)
        known = self._take(self._by_response.pop(text(request.get("previous_response_id")), b""))
        if known is not None:  # the request contains only what is new
            messages = [*known.messages, *messages]
        keys = _prefix_digests(messages)
        start = 0 if known is None else len(known.messages)
        if known is None:
            for index in range(len(keys) - 1, -1, -1):
                known = self._take(keys[index])
                if known is not None:
                    start = index + 1
                    break
        if known is None:
            known = self._begin(line, response, messages, at, log)
        else:
            for index, message in enumerate(messages[start:], start):
                if message["role"] == "user" and _is_final(known.run):
                    yield _finished(known.run)
                    known.run = _new_run(
                        known.id, known.runs, known.session, message["content"], at, messages[:index], known.run
                    )
                    known.runs += 1
                elif message["role"] == "tool":
                    self._add_result(known.run, message, at)
                elif message["role"] == "assistant":
                    self.losses.leave_out("replies whose request is not in the log")
        run = known.run
        run.set_messages(messages)
        params = {name: value for name, value in request.items() if name not in _NO_PARAMS and value is not None}
        run.model = text(request.get("model")) or run.model
        run.ask(at, {"model": run.model, "params": params}, (), _tools(request))
        calls = [Call(call.id, call.name, dict(call.arguments), call.raw) for call in reply.tool_calls]
        fields: Json = {
            "usage": reply.usage,
            "model": reply.model or run.model,
            "provider": "openai",
            "finish_reason": reply.finish_reason,
        }
        run.reply(at, reply.content, calls, fields, NO_REPLY if reply.usage else (*NO_REPLY, "usage"))
        for call in calls:
            run.call(at, call)
        known.messages = [*messages, run.transcript[-1]]
        self._wait(known, text(response.get("id")))
        while len(self._open) > MAX_OPEN or self._size > MAX_OPEN_BYTES:
            self.losses.leave_out("conversations that were closed early, because too many were open")
            yield self._evict()

    def _begin(self, line: Json, response: Json, messages: list[Json], at: float, log: Log) -> _Conversation:
        ident = _id_of(line, response, log)
        last = max((index for index, message in enumerate(messages) if message["role"] == "user"), default=-1)
        before = sum(len(message.get("tool_calls", ())) for message in messages[last + 1 :])
        self.losses.leave_out("calls before the first request in the log", before)
        task = messages[last]["content"] if last >= 0 else ""
        session = _session(line) or ident
        run = _new_run(ident, 0, session, task, at, ())
        run.metadata = mapping(line.get("metadata"))
        return _Conversation(ident, session, run, [])

    def _add_result(self, run: ImportedRun, message: Json, at: float) -> None:
        call = run.calls.get(message.get("call_id", ""))
        if call is None or call.answered:
            self.losses.leave_out("results without their call")
        else:
            run.result(at, call, message["content"], missing=NO_RESULT)

    def _wait(self, conversation: _Conversation, response_id: str) -> None:
        """Keep a conversation until its next request."""
        key = _prefix_digests(conversation.messages)[-1]
        conversation.size = sum(len(message.get("content", "")) + 200 for message in conversation.messages)
        conversation.response_id = response_id
        same = self._open.pop(key, None)
        if same is not None:  # two equal conversations: the digest finds only one of them
            self._open[key + str(id(same)).encode()] = same
        self._open[key] = conversation
        self._size += conversation.size
        if response_id:
            self._by_response[response_id] = key

    def _take(self, key: bytes) -> _Conversation | None:
        found = self._open.pop(key, None)
        if found is not None:
            self._size -= found.size
            self._by_response.pop(found.response_id, None)
        return found

    def _evict(self) -> ImportedRun:
        found = self._take(next(iter(self._open)))
        assert found is not None
        return _finished(found.run)


def _new_run(
    ident: str,
    number: int,
    session: str,
    task: str,
    at: float,
    before: Sequence[Json],
    previous: ImportedRun | None = None,
) -> ImportedRun:
    run_id = f"{ident}/{number}" if number else ident
    run = ImportedRun(Ids(run_id=run_id, session_id=session, agent="openai"), time=at, task=task)
    run.provider = "openai"
    systems = [message["content"] for message in before if message["role"] == "system"]
    run.system = "\n\n".join(systems)
    if previous is not None:
        run.metadata, run.system, run.model = previous.metadata, previous.system or run.system, previous.model
    run.start()
    return run


def _is_final(run: ImportedRun) -> bool:
    """Return whether the last reply of a run made no calls, so that the next message of the user is a new task."""
    last = next((item for item in reversed(run.items) if getattr(item, "point", "") == "after_llm"), None)
    return last is not None and "tool_calls" not in last.payload  # type: ignore[union-attr]


def _finished(run: ImportedRun) -> ImportedRun:
    """Finish a run, unless the log ends before its final reply."""
    if _is_final(run):
        run.finish(run.time, "completed", missing=NO_END)
    return run


def _prefix_digests(messages: list[Json]) -> list[bytes]:
    """Return a digest of the messages up to each one. System prompts do not count: some contain the time."""
    state, found = blake2b(digest_size=16), []
    for message in messages:
        if message["role"] != "system":
            state.update(_encode(message))
        found.append(state.digest())
    return found


def _read_reply(response: Any, index: int) -> ParsedReply | None:
    """Parse a reply of either API, or its streamed pieces. ``index`` is its position among the messages."""
    try:
        if isinstance(response, list):
            is_chat = any("choices" in chunk for chunk in response)
            stream: Any = _CHAT.stream() if is_chat else _RESPONSES_API.stream()
            for chunk in response:
                stream.add(chunk)
            response = stream.whole()
        if not isinstance(response, dict):
            return None
        if "output" in response:
            return _RESPONSES_API.read(response)
        found = _CHAT.read(_with_legacy_call(response, index))
    except (TypeError, AttributeError, KeyError, ValueError, IndexError):
        return None
    return found


def _with_legacy_call(response: Json, index: int) -> Json:
    """Return a response in which an old ``function_call`` is a tool call."""
    message = mapping(mapping(next(iter(sequence(response.get("choices"))), None)).get("message"))
    function = message.get("function_call")
    if not isinstance(function, dict) or message.get("tool_calls"):
        return response
    made = {**message, "tool_calls": [{"id": _legacy_id(index), "function": function}]}
    return {**response, "choices": [{**response["choices"][0], "message": made}]}


def _legacy_id(index: int) -> str:
    """Return an id for an old function call, which has none, by the position of its message."""
    return f"function_call_{index}"


def _normalized(raw: list[Any], losses: Losses) -> list[Json]:
    """Return messages in Hookline's form; those that cannot be read are left out."""
    found: list[Json] = []
    last_call = ""
    for message in raw:
        given = mapping(message)
        role = _ROLES.get(text(given.get("role")), given.get("role"))
        if role not in ("system", "user", "assistant", "tool"):
            losses.leave_out("messages with an unknown role")
            continue
        content = _content(given.get("content"), losses) or text(given.get("refusal"))
        one: Json = {"role": role, "content": content}
        if role == "assistant":
            calls = [_tool_call(mapping(call)) for call in sequence(given.get("tool_calls"))]
            if isinstance(given.get("function_call"), dict):
                last_call = _legacy_id(len(found))
                calls.append(_tool_call({"id": last_call, "function": given["function_call"]}))
            if calls:
                one["tool_calls"] = [call.as_json() for call in calls]
            if not content:
                del one["content"]
        elif role == "tool":
            one["call_id"] = text(given.get("tool_call_id")) or last_call
            if name := text(given.get("name")):
                one["name"] = name
        found.append(one)
    return found


def _tool_call(call: Json) -> Call:
    function = mapping(call.get("function") or call.get("custom"))
    return Call.of(call.get("id"), function.get("name"), function.get("arguments", function.get("input")))


def _calls(message: Json) -> list[Call]:
    return [
        Call(call["id"], call["name"], call["arguments"], call.get("raw")) for call in message.get("tool_calls", ())
    ]


def _content(content: Any, losses: Losses) -> str:
    """Return the text of a message, with a placeholder for all that is not text."""
    if isinstance(content, str):
        return content
    parts = []
    for part in sequence(content):
        if isinstance(part, str) or isinstance(mapping(part).get("text"), str):
            parts.append(part if isinstance(part, str) else part["text"])
        else:
            losses.leave_out("images, sound and files (a placeholder is imported)")
            parts.append(f"[{text(mapping(part).get('type')) or 'unknown content'}]")
    return "\n".join(parts)


def _input_messages(request: Json) -> list[Json]:
    """Return the input of the Responses API as messages of the Chat Completions API."""
    given = request.get("input")
    found: list[Json] = []
    if instructions := text(request.get("instructions")):
        found.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        return [*found, {"role": "user", "content": given}]
    for item in map(mapping, sequence(given)):
        kind = item.get("type", "message")
        if kind == "message":
            found.append({"role": item.get("role"), "content": item.get("content")})
        elif kind == "function_call_output":
            output = item.get("output")
            content = output if isinstance(output, (str, list)) else msgspec.json.encode(output).decode()
            found.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
        elif kind == "function_call":
            call = {"id": item.get("call_id") or item.get("id"), "function": item}
            last = found[-1] if found and found[-1].get("role") == "assistant" else None
            if last is None:
                last = {"role": "assistant", "content": None}
                found.append(last)
            last["tool_calls"] = [*last.get("tool_calls", ()), call]
    return found


def _tools(request: Mapping[str, Any]) -> list[Json]:
    found = []
    for tool in sequence(request.get("tools")) or sequence(request.get("functions")):
        given = mapping(tool)
        function = mapping(given.get("function")) or given
        if name := text(function.get("name")):
            parameters = mapping(function.get("parameters"))
            found.append({"name": name, "description": text(function.get("description")), "parameters": parameters})
    return found


def _time_of(line: Json) -> float:
    names = ("timestamp", "created", "created_at", "time", "start_time")
    return next((at for name in names if (at := unix_time(line.get(name)))), 0.0)


def _id_of(line: Json, response: Json, log: Log) -> str:
    given = (line.get("id"), line.get("request_id"), line.get("custom_id"), response.get("id"))
    return next((each for each in given if isinstance(each, str) and each), f"{log.name}:{log.number}")


def _session(line: Json) -> str:
    metadata = mapping(line.get("metadata"))
    names = ("session_id", "conversation_id", "thread_id")
    return next((each for name in names if (each := text(line.get(name) or metadata.get(name)))), "")
