"""What is known of a session of a coding agent: its prompts, results and runs."""

from __future__ import annotations

import asyncio
import os
import re
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from ..._kernel.payloads import ToolCallResult
from ..._kernel.values import Message, ToolCall
from ..._run.budget import Limits
from ..._run.context import AgentContext, set_origin
from ..._run.hosted import HostedAgent, HostedRun, HostedTools
from ..._run.session import Session
from ...hooks._injection.fence import EARLIER, as_fenced, fence, fenced, unfenced
from .codecs.base import PREFIX, cut
from .events import BEGINNINGS, AgentEvent

if TYPE_CHECKING:
    from ...tools._tool import Tool

MAX_RUNS = 50
"""Runs of a session whose state is kept: the current one, and those of its subagents."""
MAX_ENTRIES = 200
"""Prompts and results of a session that are kept for guards, and beyond them those with suspicious text."""
MAX_READ = 1000
"""Sessions that have read untrusted text are remembered, for the next process too."""
MAX_KEEP_GOING = 3
"""How often hooks may keep a run going. Each time costs the user a turn of the agent."""
_GOES_ON = frozenset(("completed", "stop_requested"))
_RUN_ID = re.compile(r"[A-Za-z0-9_.:@+-]{1,200}")
_DELEGATING = frozenset(("delegate", "Task", "task", "Agent"))
"""Our names of tools that start subagents."""
_MAX_TEXT = 20_000
"""Characters of a result that are kept."""


class AgentSession:
    """One session of a coding agent.

    Args:
        id: its id.
        can_go_on: whether hooks can keep a run going.
    """

    def __init__(self, id: str, *, can_go_on: bool = True) -> None:
        self.id = id
        self._max_keep_going = MAX_KEEP_GOING if can_go_on else 0
        self.lock = asyncio.Lock()
        self.conversation = Conversation()
        self.is_fresh = False
        """Whether the session has begun, and has had no run."""
        self.runs: OrderedDict[str, PromptRun] = OrderedDict()
        """The latest run of the session, and of each subagent."""

    async def run(self, event: AgentEvent, agent: HostedAgent, limits: Limits) -> PromptRun:
        """Return the run that an event belongs to: a prompt starts one.

        A run whose beginning this process has not seen is joined: nothing is fired at its start.

        Raises:
            HookError, CallRefusedError: a hook failed closed at the start of the run.
        """
        run = self.runs.get(event.subagent)
        if run is not None and run.has(event):
            run.prompt_id = event.run or run.prompt_id
            if not run.refusal or event.kind in BEGINNINGS:
                return run
            if run.late is None or run.late.hosted.done:
                run.late = await self._start(event, agent, limits, run)
            return run.late
        if run is not None:
            await run.end("another prompt followed")
        run = self.runs[event.subagent] = await self._start(event, agent, limits, run)
        self.runs.move_to_end(event.subagent)
        while len(self.runs) > MAX_RUNS:
            _, old = self.runs.popitem(last=False)
            await old.end("the run was forgotten")
        return run

    async def _start(
        self, event: AgentEvent, agent: HostedAgent, limits: Limits, earlier: PromptRun | None
    ) -> PromptRun:
        is_prompt = event.kind == "prompt"
        keep_going = self._max_keep_going if is_prompt or earlier is None else earlier.keep_going
        main = self.runs.get("") if event.subagent else None
        outer = None if main is None or main.hosted.done else main.hosted
        options: dict[str, Any] = {}
        if event.run:
            options = {"task_id": event.run, "correlation_id": event.run}
        if outer is None:
            options["ctx"] = AgentContext[Any](limits=limits)
            set_origin(options["ctx"], agent.name)
        else:
            options["ctx"] = outer.ctx
            options["call_id"] = next((call.id for call in outer.in_flight if call.name in _DELEGATING), "")
        session = Session(self.id, platform=agent.name)
        session.messages = self.conversation.messages
        if is_prompt and self.is_fresh and not event.subagent:
            self.is_fresh = False
        else:
            session.first_run()
        hosted = await agent.host(
            event.prompt,
            goes_on=not is_prompt,
            run_id="" if earlier is not None and earlier.is_over(event) else _run_id(event),
            tools=HostedTools(self.conversation.tools.values()),
            max_keep_going=keep_going,
            session=session,
            **options,
        )
        return PromptRun(event, hosted, outer, keep_going)

    async def suspend(self) -> None:
        """Stop executing all runs: the next process goes on with them."""
        for run in reversed(self.runs.values()):
            for each in (run.late, run):
                if each is not None:
                    await each.hosted.suspend()

    async def end(self, reason: str) -> None:
        """End all runs that are still open: the agent, or this process, does not go on with them."""
        for run in reversed(self.runs.values()):
            await run.end(reason)


def _run_id(event: AgentEvent) -> str:
    """Return the id of the prompt as that of its run, so that another process goes on with the same run."""
    is_id = event.run and not event.subagent and _RUN_ID.fullmatch(event.run)
    return str(event.run) if is_id else ""


class PromptRun:
    """What follows one prompt, of the session or of one of its subagents.

    Args:
        event: the first event.
        hosted: the run.
        outer: the run that the subagent is part of.
        keep_going: how often hooks may keep it going until the next prompt.
    """

    def __init__(self, event: AgentEvent, hosted: HostedRun, outer: HostedRun | None, keep_going: int) -> None:
        self.hosted, self._outer = hosted, outer
        self.keep_going = keep_going
        self.prompt_id = event.run
        self.is_new = True
        """Whether its first event has not been answered."""
        self.has_prompts = event.kind == "prompt" or event.run is not None
        """Whether the next prompt of the user will be known."""
        self.late: PromptRun | None = None
        """The run of the results that were reported after this one was over."""
        self.continuation: str | None = None
        """Why the run must go on although the agent was about to stop. Some agents send this as a prompt."""

    @property
    def refusal(self) -> str:
        """Why no call may be made before the next prompt, because the run is over; empty if calls may be made.

        A limit or a person has ended such a run. Otherwise, what the agent does is another run.
        """
        result = self.hosted.result
        is_outer_over = self._outer is not None and self._outer.done
        if result is None or result.stop is None or result.stop.kind in _GOES_ON or is_outer_over:
            return ""
        return self.hosted.over or f"This run has ended: {result.stop.message or result.status}."

    def is_over(self, event: AgentEvent) -> bool:
        """Return whether something else than the agent has ended the run that an event would belong to."""
        result = self.hosted.result
        return event.run == self.prompt_id and result is not None and result.status != "completed"

    def has(self, event: AgentEvent) -> bool:
        """Return whether an event belongs to this run."""
        if self.is_continued_by(event):
            return True
        is_same = event.run is None or event.run == self.prompt_id
        if event.kind == "prompt":
            return event.run is not None and is_same and not self.hosted.done
        if not is_same or not self.hosted.done:
            return is_same
        result = self.hosted.result
        is_stop = event.kind == "stop" and self.has_prompts and result is not None and result.status == "completed"
        return is_stop or bool(self.refusal)

    async def end(self, reason: str) -> None:
        """End the run if it is still open: nobody goes on with it."""
        for run in (self, self.late):
            if run is not None and not run.hosted.done:
                await run.hosted.cancel(reason)

    def is_continued_by(self, event: AgentEvent) -> bool:
        """Return whether an event is the prompt that an agent makes of the reason to go on."""
        if event.kind != "prompt" or self.continuation is None or self.hosted.done:
            return False
        return cut(event.prompt.strip().removeprefix(PREFIX)) == cut(self.continuation)


class Conversation:
    """The prompts of a session, and the results of its tools as hooks left them.

    Guards read it when a prompt begins, as they read the history of a run of Hookline.
    """

    def __init__(self) -> None:
        self.tools: dict[str, Tool] = {}
        self._results = 0
        self._entries: list[tuple[Message, ...]] = []
        """Each prompt, and each call together with its result."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages, oldest first."""
        return tuple(message for entry in self._entries for message in entry)

    def add_earlier(self, tool: str, *, suspicious: bool) -> None:
        """Add untrusted text that was read before this process began. What it said is not known."""
        self._entries.append(_call(EARLIER, tool, {}, fence(_EARLIER, tool, EARLIER, suspicious=suspicious)))

    def add_prompt(self, prompt: str) -> None:
        """Add a prompt of the user."""
        self._entries.append((Message("user", prompt),))

    def add_result(self, shown: ToolCallResult, tool: Tool) -> None:
        """Add a call and its result, and the tool that was called."""
        self.tools[tool.name] = tool
        text = as_fenced(shown.text, unfenced(shown.text)[:_MAX_TEXT])
        self._results += 1
        id = f"call_{self._results}"  # an agent may use an id again, and a transcript may not
        self._entries.append(_call(id, shown.name, shown.arguments, text, is_error=shown.error is not None))
        if len(self._entries) > 2 * MAX_ENTRIES:
            old = self._entries[:-MAX_ENTRIES]
            self._entries[:-MAX_ENTRIES] = [entry for entry in old if (fenced(entry[-1].content) or ("", False))[1]]


_EARLIER = "(text that was read before this process began)"


def _call(
    id: str, tool: str, arguments: Mapping[str, Any], text: str, *, is_error: bool = False
) -> tuple[Message, Message]:
    """Return the messages of a call and its result."""
    call = Message("assistant", tool_calls=(ToolCall(id, tool, arguments),))
    return call, Message("tool", text, call_id=id, name=tool, is_error=is_error)


class ReadBefore:
    """Which sessions have read untrusted text: kept in a file for the next process, without the text.

    The process may end in the middle of a session, and the agent still has the text.

    Args:
        path: the file; empty to keep nothing.
    """

    def __init__(self, path: str = "") -> None:
        self._path = path
        self._known: dict[str, tuple[str, bool]] = {}
        if path:
            with suppress(FileNotFoundError), open(path, "rb") as file:
                for line in file:
                    with suppress(msgspec.MsgspecError):  # a process was killed while it wrote
                        session, tool, suspicious = msgspec.json.decode(line, type=tuple[str, str, bool])
                        self._known[session] = tool, suspicious
            self._known = dict(list(self._known.items())[-MAX_READ:])

    def of(self, session: str) -> tuple[str, bool] | None:
        """Return a tool whose untrusted text a session has read, and whether that was suspicious."""
        return self._known.get(session)

    def add(self, session: str, tool: str, *, suspicious: bool) -> None:
        """Remember that a session has read untrusted text."""
        known = self._known.get(session)
        if known is not None and (known[1] or not suspicious):
            return
        self._known[session] = tool, suspicious
        if self._path:
            lines = [(session, tool, suspicious)]
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            if len(self._known) > 2 * MAX_READ:
                self._known = dict(list(self._known.items())[-MAX_READ:])
                lines, flags = [(each, *found) for each, found in self._known.items()], flags | os.O_TRUNC
            with open(os.open(self._path, flags, 0o600), "wb") as file:
                file.write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
