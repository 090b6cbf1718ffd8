"""Makes a vector real: hooks, tools, a scripted model and an agent; and reads a story from the events of a run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from hookline import Agent, HookResult, Limits, ScriptedModel, call, tool
from hookline.events import Event
from hookline.hooks import ApprovalsHook, Compactor, ContextCompactionHook
from hookline.points import POINTS
from hookline.teams import Team

from .vectors import ApprovalTold, CallTold, HookVerdict, PointVerdict, RuleData, Story, Vector

TASK = "Go."
LONG = "a long line " * 29 + "a long line"
INSTEAD = ("raise", "hang", "nonsense", "cancel")
"""What a rule does instead of returning a verb."""


class Rule:
    """The hook that a vector describes."""

    def __init__(self, data: RuleData) -> None:
        self.data = data
        self.points = frozenset((data.point,))
        self.name = data.name
        pipeline = POINTS[data.point].model == "pipeline"
        if data.phase:
            self.phase = data.phase
        elif pipeline:
            self.phase = "rewrite" if data.verb == "replace" else "guard"
        if data.on_failure:
            self.on_failure = data.on_failure
        if data.timeout is not None:
            self.timeout = data.timeout
        if data.tools:
            self.tools = data.tools
        self.verbs = () if data.verb in INSTEAD else (data.verb,)
        # A hook may withdraw tools in every loop, so that is no change that a framework could refuse.
        self.changes = tuple(field for field in data.value if field != "tools") if data.verb == "replace" else ()

    def __call__(self, point: str, ctx: Any, payload: Any) -> Any:
        data = self.data
        if data.agent and ctx.agent_name != data.agent:
            return None
        if any(getattr(payload, field) != value for field, value in data.when.items()):
            return None
        if data.once:
            seen = ctx.own_state(self, dict)
            if seen.setdefault("called", False):
                return None
            seen["called"] = True
        match data.verb:
            case "raise":
                raise ValueError(data.value)
            case "hang":
                return asyncio.Event().wait()
            case "nonsense":
                return 7
            case "cancel":
                ctx.interrupt.cancel(data.value)
                return asyncio.Event().wait()  # until the run cancels it
            case "cont":
                return HookResult.cont(reason=data.reason)
            case "merge":
                return HookResult.merge(**data.value, reason=data.reason)
            case "approve":
                return HookResult.approve(by=data.by, reason=data.reason)
            case "deny":
                return HookResult.deny(data.value, by=data.by, reason=data.reason)
            case "edit":
                return HookResult.edit(data.value, by=data.by, reason=data.reason)
        return getattr(HookResult, data.verb)(data.value, reason=data.reason)


class AsyncRule(Rule):
    """A rule that waits."""

    async def __call__(self, point: str, ctx: Any, payload: Any) -> Any:
        result = super().__call__(point, ctx, payload)
        return await result if asyncio.iscoroutine(result) else result


def rule(data: RuleData) -> Rule:
    """Return the hook that a vector describes."""
    return (AsyncRule if data.verb in ("hang", "cancel") else Rule)(data)


def turn(data: Any) -> Any:
    """Return a turn of the scripted model."""
    if isinstance(data, str):
        return data
    if isinstance(data, dict):
        if "error" in data:
            return ConnectionError(data["error"])
        return call(data["tool"], **data.get("arguments", {}))
    return [turn(each) for each in data]


class Scene:
    """A vector with everything that it needs. ``ran`` are the calls that really reached a tool.

    Args:
        vector: the vector.
        folder: a folder for its files.
    """

    def __init__(self, vector: Vector, folder: Path) -> None:
        self.vector = vector
        self.ran: list[tuple[str, dict[str, Any]]] = []
        self.model = ScriptedModel([turn(each) for each in vector.model])
        self.hooks: list[Any] = [rule(each) for each in vector.hooks]
        if vector.compacts:
            self.hooks.append(ContextCompactionHook(Compactor(60, keep_last=1, max_summary_tokens=10)))
        if vector.approval_seconds:
            self.hooks.append(ApprovalsHook(folder / "approvals.db", seconds=vector.approval_seconds))
        self.functions = self._tools()

    def _tools(self) -> list[Any]:
        def shell(command: str) -> str:
            """Run a command."""
            self.ran.append(("shell", {"command": command}))
            return f"ran {command}"

        def read(path: str) -> str:
            """Read a file."""
            self.ran.append(("read", {"path": path}))
            return LONG if path == "long.txt" else f"text of {path}"

        def connect(host: str) -> str:
            """Connect to a host."""
            self.ran.append(("connect", {"host": host}))
            raise ConnectionError("the line is cut")

        return [shell, read, connect]

    def executed(self, story: Story) -> Story:
        """Return a story with what really happened in this scene."""
        requests = self.model.requests
        heard = requests[-1].messages[-1].content if requests else ""
        return msgspec.structs.replace(story, heard=heard, ran=tuple(sorted(self.ran, key=repr)))

    @property
    def tools(self) -> list[Any]:
        """The tools of the agent, with a team if there is a subagent."""
        tools: list[Any] = [tool(function) for function in self.functions]
        if self.vector.helper:
            script = ScriptedModel([turn(each) for each in self.vector.helper])
            tools.append(Team([Agent("helper", llm=script, tools=[tool(function) for function in self.functions])]))
        return tools

    @property
    def plain_tools(self) -> list[Any]:
        """The tools as plain functions, for the loops of frameworks."""
        if not self.vector.helper:
            return self.functions
        script = ScriptedModel([turn(each) for each in self.vector.helper])

        async def delegate(to: str, task: str) -> str:
            """Delegate a task."""
            tools = [tool(function) for function in self.functions]
            return (await Agent(to, llm=script, tools=tools).arun(task)).reply

        return [*self.functions, delegate]

    def agent(self, *hooks: Any, **options: Any) -> Agent:
        """Return the agent; further hooks watch it."""
        limits = Limits(**self.vector.limits) if self.vector.limits else None  # type: ignore[arg-type]
        return Agent("main", llm=self.model, tools=self.tools, hooks=[*self.hooks, *hooks], limits=limits, **options)


def story_of(events: Iterable[Event]) -> Story:
    """Read a story from the events of a run and its nested runs."""
    return story_of_json(event.payload for event in events)


def story_of_json(events: Iterable[dict[str, Any]]) -> Story:
    """Read a story from events as JSON, as servers and stores have them."""
    agents: dict[str, str] = {}
    verdicts, points, calls, approvals = [], [], [], []
    started: dict[tuple[str, str], list[dict[str, Any]]] = {}
    shown: dict[int, str] = {}
    result: dict[str, Any] = {}
    for outer in events:
        nested = outer["type"] == "subagent_event"
        event = outer["event"] if nested else outer
        kind, run, call_id = event["type"], event.get("run_id", ""), event.get("call_id", "")
        if kind == "run_started":
            agents[run] = event["ids"]["agent"]
        agent = agents.get(run, "main")
        if kind == "hook_executed":
            told = [event[name] for name in ("point", "verb", "hook", "reason", "tool", "refused")]
            verdicts.append(HookVerdict(*told, event["error"] or "", agent))
        elif kind == "point_fired" and event["verb"] != "cont":
            points.append(PointVerdict(event["point"], event["verb"], event["hook"], event["reason"], agent))
        elif kind == "tool_started":
            started.setdefault((run, call_id), []).append(event["arguments"])
        elif kind == "tool_settled":
            ran = tuple(started.get((run, call_id), ()))
            calls.append(CallTold(event["tool"], event["outcome"], event["text"], ran, agent))
        elif kind == "approval_decided":
            told = [event[name] for name in ("decision", "tool", "by", "message")]
            approvals.append(ApprovalTold(*told, agent))
        elif not nested and event.get("purpose") == "step" and kind == "text_delta":
            shown[event["hop"]] = shown.get(event["hop"], "") + event["text"]
        elif not nested and event.get("purpose") == "step" and kind == "discarded":
            shown.pop(event["hop"], None)
        elif not nested and kind == "run_finished":
            result = event["result"]
    return Story(
        result["status"],
        (result["stop"] or {}).get("kind", ""),
        result["reply"],
        "".join(shown.values()),
        verdicts=tuple(verdicts),
        points=tuple(points),
        calls=tuple(calls),
        approvals=tuple(approvals),
    )
