"""Import OTLP JSON with the GenAI conventions of OpenTelemetry, such as Hookline's own ``OpenTelemetryHook`` exports.

A file contains export requests, one per line (as the file exporter of the collector writes) or one over many lines:
``{"resourceSpans": [{"scopeSpans": [{"spans": […]}]}]}``. Spans become runs by their operation: ``invoke_agent`` is a
run, ``chat`` a call of a model, ``execute_tool`` a tool call. A trace without agents is one run.

The content of messages, arguments and results is opt-in in these conventions, and instrumentations write it in three
ways: as attributes of the span, as events of the span, or as log records. All are read; what is missing is counted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from .._base.frozen import json_text
from .._kernel.values import Ids, Usage
from ..records.format import Decision, Label
from .logs import Losses, decoded, mapping, number, open_log, sequence, text
from .runs import Call, ImportedRun, Json, Moment

SUFFIXES = (".jsonl", ".ndjson", ".json")
"""The files that are read in folders."""
MAX_OPEN_BYTES = 256 << 20
"""Maximum size of the traces that are held in memory. Spans of a trace may be anywhere in the files."""

CHAT = frozenset(("chat", "text_completion", "generate_content"))
AGENT, TOOL = "invoke_agent", "execute_tool"

NO_END = ("messages", "steps", "errors")

_PARAMS = {
    "gen_ai.request.temperature": "temperature",
    "gen_ai.request.max_tokens": "max_tokens",
    "gen_ai.request.top_p": "top_p",
    "gen_ai.request.top_k": "top_k",
    "gen_ai.request.seed": "seed",
    "gen_ai.request.frequency_penalty": "frequency_penalty",
    "gen_ai.request.presence_penalty": "presence_penalty",
    "gen_ai.request.stop_sequences": "stop",
}
_FINISHES = {"tool_call": "tool_calls", "tool_use": "tool_calls", "end_turn": "stop", "max_tokens": "length"}
_STRENGTH = ("end", "stop", "block", "ask")
_ROLES = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}


class Event(msgspec.Struct):
    """An event of a span, or a log record that belongs to it."""

    name: str
    time: float
    attributes: Json


class Span(msgspec.Struct):
    """A span. Spans that are not about generative AI have no attributes: they only connect others."""

    id: str
    parent: str
    start: float
    end: float
    attributes: Json
    events: list[Event]
    failed: bool = False
    message: str = ""

    @property
    def operation(self) -> str:
        """The operation of the span; empty if it is not about generative AI."""
        return text(self.attributes.get("gen_ai.operation.name"))


class _Trace(msgspec.Struct):
    spans: dict[str, Span] = {}
    logs: dict[str, list[Event]] = {}
    size: int = 0


def read(paths: Sequence[str], losses: Losses) -> Iterator[ImportedRun]:
    """Yield the runs of all traces."""
    traces: OrderedDict[str, _Trace] = OrderedDict()
    closed: set[int] = set()
    size = 0
    for path in paths:
        try:
            with open_log(path, losses) as log:
                for line in log.documents():
                    if not any(name in line for name in ("resourceSpans", "resourceLogs", "resourceMetrics")):
                        log.skip("the line is not OTLP JSON")
                        continue
                    for trace_id, item in _items(line, losses):
                        if hash(trace_id) in closed:
                            losses.leave_out("spans that came after their trace was closed")
                            continue
                        size += _add(traces.setdefault(trace_id, _Trace()), item)
                        traces.move_to_end(trace_id)
                    while size > MAX_OPEN_BYTES:
                        trace_id, trace = traces.popitem(last=False)
                        closed.add(hash(trace_id))
                        size -= trace.size
                        losses.leave_out("traces that were closed early, because too many were open")
                        yield from _runs(trace_id, trace, losses)
        except OSError as error:
            losses.skipped.skip(path, f"the file cannot be read: {error.strerror or error}")
    while traces:
        yield from _runs(*traces.popitem(last=False), losses)


def _items(line: Json, losses: Losses) -> Iterator[tuple[str, Span | tuple[str, Event]]]:
    """Yield the spans and log records of an export request, each with the id of its trace."""
    losses.leave_out("exports of metrics", len(sequence(line.get("resourceMetrics"))))
    for resource in map(mapping, sequence(line.get("resourceSpans"))):
        for scope in map(mapping, sequence(resource.get("scopeSpans"))):
            for span in map(mapping, sequence(scope.get("spans"))):
                trace_id, made = text(span.get("traceId")), _span(span)
                if not trace_id or not made.id:
                    losses.leave_out("spans without an id")
                    continue
                if made.operation not in (*CHAT, AGENT, TOOL):
                    losses.leave_out("spans that are not about a model, a tool or an agent")
                    made.attributes, made.events = {}, []
                yield trace_id, made
    for resource in map(mapping, sequence(line.get("resourceLogs"))):
        for scope in map(mapping, sequence(resource.get("scopeLogs"))):
            for record in map(mapping, sequence(scope.get("logRecords"))):
                attributes = _attributes(record.get("attributes"))
                name = text(record.get("eventName")) or text(attributes.get("event.name"))
                if not name.startswith("gen_ai.") or not record.get("spanId"):
                    losses.leave_out("log records that do not belong to a span about a model")
                    continue
                body = _value(record.get("body"))
                event = Event(name, _seconds(record.get("timeUnixNano")), attributes | mapping(body))
                yield text(record.get("traceId")), (text(record["spanId"]), event)


def _add(trace: _Trace, item: Span | tuple[str, Event]) -> int:
    """Add a span or a log record to its trace, and return its approximate size."""
    if isinstance(item, Span):
        size = 300 + _size(item.attributes) + sum(200 + _size(event.attributes) for event in item.events)
        trace.spans[item.id] = item
    else:
        size = 200 + _size(item[1].attributes)
        trace.logs.setdefault(item[0], []).append(item[1])
    trace.size += size
    return size


def _size(attributes: Json) -> int:
    return sum(100 + (len(value) if isinstance(value, str) else 100) for value in attributes.values())


def _span(span: Json) -> Span:
    status = mapping(span.get("status"))
    start = _seconds(span.get("startTimeUnixNano"))
    return Span(
        text(span.get("spanId")),
        text(span.get("parentSpanId")),
        start,
        max(start, _seconds(span.get("endTimeUnixNano"))),  # a span that did not finish has no end
        _attributes(span.get("attributes")),
        [
            Event(text(event.get("name")), _seconds(event.get("timeUnixNano")), _attributes(event.get("attributes")))
            for event in map(mapping, sequence(span.get("events")))
        ],
        status.get("code") in (2, "STATUS_CODE_ERROR"),
        text(status.get("message")),
    )


def _seconds(nanoseconds: Any) -> float:
    return number(nanoseconds) / 1e9


def _attributes(given: Any) -> Json:
    pairs = map(mapping, sequence(given))
    return {text(pair.get("key")): _value(pair.get("value")) for pair in pairs}


def _value(value: Any) -> Any:
    """Return the JSON value of an OTLP value such as ``{"stringValue": "x"}``."""
    for kind, item in mapping(value).items():
        if kind == "intValue":
            return int(item) if isinstance(item, str) and item.lstrip("-").isdecimal() else item
        if kind == "arrayValue":
            return [_value(each) for each in sequence(mapping(item).get("values"))]
        if kind == "kvlistValue":
            return _attributes(mapping(item).get("values"))
        return item
    return None


def _runs(trace_id: str, trace: _Trace, losses: Losses) -> Iterator[ImportedRun]:
    """Yield the outermost runs of a trace, with the runs inside them."""
    for span_id, events in trace.logs.items():
        if span_id in trace.spans:
            trace.spans[span_id].events += events
        else:
            losses.leave_out("log records whose span is not in the files", len(events))
    members: dict[str, list[Span]] = {}
    for span in trace.spans.values():
        if span.operation:
            members.setdefault(_agent_above(span, trace.spans)[0], []).append(span)
    for span in sorted(members.get("", ()), key=lambda span: span.start):
        if span.operation == AGENT:
            yield _build(trace_id, span, members, trace.spans, losses)
    if any(span.operation != AGENT for span in members.get("", ())):
        yield _build(trace_id, None, members, trace.spans, losses)


def _agent_above(span: Span, spans: dict[str, Span]) -> tuple[str, str]:
    """Return the id of the agent span that contains a span, and of the tool call between them, if there are such."""
    call, seen = "", {span.id}
    above = spans.get(span.parent)
    while above is not None and above.id not in seen:
        if above.operation == AGENT:
            return above.id, call
        if above.operation == TOOL and not call:
            call = text(above.attributes.get("gen_ai.tool.call.id"))
        seen.add(above.id)
        above = spans.get(above.parent)
    return "", call


def _build(
    trace_id: str, agent: Span | None, members: dict[str, list[Span]], spans: dict[str, Span], losses: Losses
) -> ImportedRun:
    """Build the run of an agent span, or of all spans without an agent."""
    own = [
        span
        for span in members.get("" if agent is None else agent.id, ())
        if agent is not None or span.operation != AGENT
    ]
    about = {} if agent is None else agent.attributes
    start = agent.start if agent is not None else min(span.start for span in own)
    ids = Ids(
        run_id=text(about.get("hookline.run_id")) or (trace_id if agent is None else agent.id),
        task_id=text(about.get("hookline.task_id")),
        correlation_id=text(about.get("hookline.correlation_id")) or trace_id,
        session_id=text(about.get("gen_ai.conversation.id")),
        agent=text(about.get("gen_ai.agent.name")) or "otel",
        parent_run_id=text(about.get("hookline.parent_run_id")),
    )
    builder = _Builder(ImportedRun(ids, time=start), losses)
    run = builder.run
    run.model = text(about.get("gen_ai.request.model"))
    run.provider = text(about.get("gen_ai.provider.name") or about.get("gen_ai.system"))
    chats = sorted((span for span in own if span.operation in CHAT), key=lambda span: span.start)
    run.task = _task(agent, chats)
    run.start()
    builder.take_verdicts(agent, "on_run_start", run.items[-1])
    for _, _, step in sorted(_timeline(own, builder), key=lambda each: each[:2]):
        if isinstance(step, Span):  # an agent inside this one
            nested = _build(trace_id, step, members, spans, losses)
            nested.call_id = _agent_above(step, spans)[1]
            if not nested.ids.parent_run_id:
                nested.ids = nested.ids.replace(parent_run_id=run.ids.run_id)
            run.items.append(nested)
        else:
            step()
    losses.leave_out("calls without a result", run.unanswered)
    if agent is not None:
        status = text(about.get("hookline.status")) or ("failed" if agent.failed else "completed")
        cost = about.get("hookline.cost")
        known_cost = float(cost) if isinstance(cost, (int, float)) else None
        run.finish(agent.end, status, cost=known_cost, missing=NO_END if known_cost is not None else ("cost", *NO_END))
        builder.take_verdicts(agent, "on_run_end", run.items[-1])
    elif not run.unanswered:
        run.finish(max(span.end for span in own), "completed", missing=("cost", *NO_END))
    return run


def _timeline(own: list[Span], builder: _Builder) -> Iterator[tuple[float, int, Any]]:
    """Yield what happened in a run: the time, an order for equal times, and a function that adds it to the run."""
    with_span = {text(span.attributes.get("gen_ai.tool.call.id")) for span in own if span.operation == TOOL}
    for number_, span in enumerate(sorted(own, key=lambda each: each.start)):
        order = number_ * 2
        if span.operation in CHAT:
            yield span.start, order, lambda span=span: builder.ask(span)
            yield span.end, order + 1, lambda span=span: builder.reply(span, with_span)
        elif span.operation == TOOL:
            yield span.start, order, lambda span=span: builder.call(span)
            yield span.end, order + 1, lambda span=span: builder.result(span)
        else:
            yield span.start, order, span


def _task(agent: Span | None, chats: list[Span]) -> str:
    """Return the last message of a user in the input of the agent, or of its first call of a model."""
    for span in (*([agent] if agent is not None else ()), *chats[:1]):
        for message in reversed(_input(span) or ()):
            if message["role"] == "user":
                return text(message.get("content"))
    return ""


class _Builder:
    """Adds the spans of one run."""

    def __init__(self, run: ImportedRun, losses: Losses) -> None:
        self.run, self.losses = run, losses
        self._offered: dict[str, Call] = {}
        """Calls in replies of the model that have not begun."""
        self._begun: dict[str, Call] = {}

    def ask(self, span: Span) -> None:
        """Add ``before_llm``, and the results that have no span of their own."""
        run, about = self.run, span.attributes
        messages = _input(span)
        missing: tuple[str, ...] = ("tools", "params")
        if messages is None:
            self.losses.leave_out("model calls without their messages (an instrumentation must be told to write them)")
            missing = ("messages", *missing)
        else:
            for message in messages:
                call = run.calls.get(message.get("call_id", "")) if message["role"] == "tool" else None
                if call is not None and not call.answered and call.id not in self._begun:
                    run.result(span.start, call, text(message.get("content")), missing=("outcome", "duration"))
            run.set_messages(messages)
        tools = _tools(decoded(about.get("gen_ai.tool.definitions")))
        run.model = text(about.get("gen_ai.request.model")) or run.model
        run.provider = run.provider or text(about.get("gen_ai.provider.name") or about.get("gen_ai.system"))
        request: Json = {
            "model": text(about.get("gen_ai.request.model")),
            "params": {name: about[key] for key, name in _PARAMS.items() if about.get(key) is not None},
            "purpose": _purpose(about),
        }
        if (attempt := number(about.get("hookline.attempt"))) > 1:
            request["attempt"] = attempt
        run.ask(span.start, request, tuple(name for name in missing if name != "tools" or not tools), tools)
        self.take_verdicts(span, "before_llm", run.items[-1])

    def reply(self, span: Span, with_span: set[str]) -> None:
        """Add ``after_llm``, and the calls that have no span of their own."""
        run, about = self.run, span.attributes
        if span.failed and _output(span) is None:
            self.losses.leave_out("model calls that failed")
            return
        output = _output(span)
        content, calls = output or ("", [])
        reasons = about.get("gen_ai.response.finish_reasons")
        reason = text(reasons[0] if isinstance(reasons, list) and reasons else reasons)
        fields: Json = {
            "usage": Usage(
                number(about.get("gen_ai.usage.input_tokens") or about.get("gen_ai.usage.prompt_tokens")),
                number(about.get("gen_ai.usage.output_tokens") or about.get("gen_ai.usage.completion_tokens")),
                number(about.get("gen_ai.usage.cache_read.input_tokens")),
            ),
            "model": text(about.get("gen_ai.response.model")),
            "provider": text(about.get("gen_ai.provider.name") or about.get("gen_ai.system")),
            "finish_reason": _FINISHES.get(reason, reason),
            "duration": round(max(0.0, span.end - span.start), 6),
            "purpose": _purpose(about),
        }
        run.reply(
            span.end, content, calls, fields, ("cost",) if output is not None else ("content", "tool_calls", "cost")
        )
        self.take_verdicts(span, "after_llm", run.items[-1])
        for call in calls:
            if call.id in with_span:
                self._offered[call.id] = call
            else:
                run.call(span.end, call)

    def call(self, span: Span) -> None:
        """Add ``before_tool``."""
        about = span.attributes
        ident, name = text(about.get("gen_ai.tool.call.id")) or span.id, text(about.get("gen_ai.tool.name"))
        call = self._offered.pop(ident, None)
        missing: tuple[str, ...] = ()
        if call is None:
            arguments = about.get("gen_ai.tool.call.arguments")
            before = self._begun.get(ident)
            if arguments is None and before is not None:  # another attempt of the same call
                call = Call(ident, before.name, before.arguments, before.raw)
            else:
                call = Call.of(ident, name, arguments)
                if arguments is None:
                    missing = ("arguments",)
                    self.losses.leave_out(
                        "tool calls without their arguments (an instrumentation must be told to write them)"
                    )
        self._begun[ident] = self._begun[span.id] = call
        self.run.call(span.start, call, missing)
        moment = call.moment
        assert moment is not None
        if (attempt := number(about.get("hookline.attempt"))) > 1:
            moment.payload["attempt"] = attempt
        self.take_verdicts(span, "before_tool", moment)
        for event in span.events:
            decision = text(event.attributes.get("hookline.decision"))
            if event.name == "hookline.approval_decided" and decision in ("approved", "edited", "denied"):
                by = text(event.attributes.get("hookline.by"))
                self.run.label(call, Label("denied" if decision == "denied" else "approved", ident, by=by))

    def result(self, span: Span) -> None:
        """Add ``after_tool``."""
        about, call = span.attributes, self._begun[span.id]
        result = about.get("gen_ai.tool.call.result")
        if result is None:
            self.losses.leave_out("tool calls without their result (an instrumentation must be told to write it)")
        said = result if isinstance(result, str) else "" if result is None else json_text(result)
        outcome = text(about.get("hookline.outcome")) or ("error" if span.failed else "ok")
        missing = ("error" if outcome != "ok" else "result",) if result is None else ()
        seconds = max(0.0, span.end - span.start)
        self.run.result(span.end, call, said or span.message, outcome=outcome, duration=seconds, missing=missing)
        after = self.run.items[-1]
        if (attempt := number(about.get("hookline.attempt"))) > 1 and isinstance(after, Moment):
            after.payload["attempt"] = attempt
        self.take_verdicts(span, "after_tool", after)

    def take_verdicts(self, span: Span | None, point: str, moment: Any) -> None:
        """Record what Hookline's hooks decided at a moment."""
        for event in () if span is None else span.events:
            about = event.attributes
            if span is None or event.name != "hookline.verdict" or about.get("hookline.point") != point:
                continue
            decision = _decision(span, about)
            if decision is None:
                self.losses.leave_out("decisions of hooks whose value is not in the spans")
            else:
                self.run.decide(moment, decision)
        moment.decisions = tuple(sorted(moment.decisions, key=lambda one: _strength(one.verb)))


def _decision(span: Span, about: Json) -> Decision | None:
    """Return a decision with its value, as far as the span of the call has it; ``None`` if it cannot be played back."""
    verb, hook, reason = (text(about.get(f"hookline.{name}")) for name in ("verb", "hook", "reason"))
    result = text(span.attributes.get("gen_ai.tool.call.result"))
    if verb == "replace":  # what changed is not known
        return Decision(hook, "rewrite", verb, reason)
    if verb == "failed":
        return Decision(hook, "guard", verb, error=text(about.get("exception.message")) or reason or "it failed")
    if verb == "stop":
        return Decision(hook, "guard", verb, reason, {"kind": "stop_requested", "message": reason})
    if verb == "ask":
        asked = (mapping(event.attributes) for event in span.events if event.name == "hookline.approval_asked")
        questions = [str(each) for one in asked for each in sequence(one.get("hookline.questions"))]
        return Decision(hook, "guard", verb, reason, "; ".join(questions) or "May this call run?")
    if verb in ("block", "end", "retry", "keep_going"):
        return Decision(hook, "guard", verb, reason, result if verb == "block" else reason)
    if verb == "answer" and span.operation == TOOL:
        return Decision(hook, "guard", verb, reason, result)
    return None


def _strength(verb: str) -> int:
    """Return the place of a verb in the order of verdicts: the last decision is the verdict."""
    return len(_STRENGTH) - _STRENGTH.index(verb) if verb in _STRENGTH else 0


def _purpose(about: Json) -> str:
    purpose = text(about.get("hookline.purpose"))
    return "" if purpose == "step" else purpose


def _input(span: Span) -> list[Json] | None:
    """Return the messages of a request, from wherever the instrumentation wrote them; ``None`` if they are missing."""
    about = span.attributes
    for event in span.events:
        if event.name == "gen_ai.client.inference.operation.details":
            about = event.attributes | about
    given = decoded(about.get("gen_ai.input.messages"))
    if given is None:
        found = [_event_message(_ROLES[event.name], event.attributes) for event in span.events if event.name in _ROLES]
        if not found:
            return None
    else:
        found = [made for message in sequence(given) for made in _messages(mapping(message))]
    system = decoded(about.get("gen_ai.system_instructions"))
    if system:
        said = "\n".join(text(mapping(part).get("content")) for part in sequence(system)) or text(system)
        found.insert(0, {"role": "system", "content": said})
    return found


def _output(span: Span) -> tuple[str, list[Call]] | None:
    """Return the text and the calls of a reply; ``None`` if they are missing."""
    about = span.attributes
    for event in span.events:
        if event.name == "gen_ai.client.inference.operation.details":
            about = event.attributes | about
    given = decoded(about.get("gen_ai.output.messages"))
    if given is not None:
        message = mapping(next(iter(sequence(given)), None))
        return _parts_text(message), _part_calls(message)
    for event in span.events:
        if event.name == "gen_ai.choice":
            message = mapping(decoded(event.attributes.get("message"))) or event.attributes
            made = _event_message("assistant", message)
            calls = [Call(each["id"], each["name"], each["arguments"]) for each in made.get("tool_calls", ())]
            return text(made.get("content")), calls
    return None


def _messages(message: Json) -> Iterator[Json]:
    """Yield the messages in Hookline's form: each result of a tool is one."""
    role = text(message.get("role"))
    results = [part for part in _parts(message) if part.get("type") == "tool_call_response"]
    for part in results:
        response = part.get("response", part.get("result"))
        content = response if isinstance(response, str) else json_text(response)
        yield {"role": "tool", "content": content, "call_id": text(part.get("id"))}
    if results:
        return
    made: Json = {"role": role if role in ("system", "user", "assistant", "tool") else "user"}
    if content := _parts_text(message):
        made["content"] = content
    if calls := _part_calls(message):
        made["tool_calls"] = [call.as_json() for call in calls]
    yield made


def _parts(message: Json) -> list[Json]:
    parts = [mapping(part) for part in sequence(message.get("parts"))]
    return parts or [{"type": "text", "content": text(message.get("content"))}]


def _parts_text(message: Json) -> str:
    return "\n".join(text(part.get("content")) for part in _parts(message) if part.get("type") == "text")


def _part_calls(message: Json) -> list[Call]:
    return [
        Call.of(part.get("id"), part.get("name"), part.get("arguments"))
        for part in _parts(message)
        if part.get("type") == "tool_call"
    ]


def _event_message(role: str, about: Json) -> Json:
    """Return the message in an event of the older conventions."""
    content = about.get("content", about.get("gen_ai.event.content"))
    made: Json = {"role": role, "content": content if isinstance(content, str) else json_text(content or "")}
    calls = sequence(decoded(about.get("tool_calls")))
    if calls:
        functions = [(mapping(call), mapping(mapping(call).get("function"))) for call in calls]
        made["tool_calls"] = [
            Call.of(call.get("id"), function.get("name"), decoded(function.get("arguments"))).as_json()
            for call, function in functions
        ]
    if role == "tool":
        made["call_id"] = text(about.get("id"))
    return made


def _tools(given: Any) -> list[Json]:
    found = []
    for tool in map(mapping, sequence(given)):
        function = mapping(tool.get("function")) or tool
        if name := text(function.get("name")):
            parameters = mapping(function.get("parameters"))
            found.append({"name": name, "description": text(function.get("description")), "parameters": parameters})
    return found
