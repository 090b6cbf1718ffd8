"""What is known of a session of a coding agent: its prompts, results and runs."""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from ..._kernel.payloads import ToolCallResult
from ..._kernel.scope import scope_of
from ..._kernel.values import Ids, Message, ToolCall
from ..._run.context import AgentContext, services_of
from ..._run.session import Session
from ...hooks._injection.fence import as_fenced, fence, fenced, unfenced
from ...tools.registry import ToolRegistry
from .codecs.base import PREFIX, cut
from .events import AgentEvent

if TYPE_CHECKING:
    from ...tools._tool import Tool
    from .recording import PromptRecord

MAX_RUNS = 50
"""Runs of a session whose state is kept: the current one, and those of its subagents."""
MAX_ENTRIES = 200
"""Prompts and results of a session that are kept for guards, and beyond them those with suspicious text."""
MAX_READ = 1000
"""Sessions that have read untrusted text are remembered, for the next process too."""
_MAX_TEXT = 20_000
"""Characters of a result that are kept."""


class AgentSession:
    """One session of a coding agent."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.conversation = Conversation()
        self.runs: OrderedDict[str, PromptRun] = OrderedDict()

    def run(self, event: AgentEvent, platform: str) -> PromptRun:
        """Return the run that an event belongs to: a new prompt starts one, the start of a session has its own."""
        if event.kind == "session_start":
            return PromptRun(event, platform, self.conversation)
        run = self.runs.get(event.subagent)
        if run is not None and run.is_continued_by(event):
            run.prompt_id = event.run
            return run
        is_new = run is None or event.kind == "prompt"
        is_new = is_new or (event.run is not None and run is not None and run.prompt_id != event.run)
        if is_new or run is None:
            run = self.runs[event.subagent] = PromptRun(event, platform, self.conversation)
            while len(self.runs) > MAX_RUNS:
                self.runs.popitem(last=False)
        return run


class PromptRun:
    """What follows one prompt, of the session or of one of its subagents.

    Args:
        event: the first event.
        platform: the coding agent.
        earlier: the conversation before it.
    """

    def __init__(self, event: AgentEvent, platform: str, earlier: Conversation) -> None:
        self.ctx: AgentContext[Any] = AgentContext(session=Session(event.session, platform=platform))
        self.ids = Ids(run_id=event.run or self.ctx.new_id("run"), session_id=event.session, agent=platform)
        services_of(self.ctx).ids = self.ids
        services_of(self.ctx).agent_name = platform
        services_of(self.ctx).tools = ToolRegistry(earlier.tools.values())
        scope = scope_of(self.ctx)
        scope.accept_state(scope.state.replace(messages=earlier.messages))
        self.conversation = earlier
        self.prompt = event.prompt
        self.prompt_id = event.run
        self.calls = 0
        self.kept_going = 0
        self.continuation: str | None = None
        """Why the run must go on although the agent was about to stop. Some agents send this as a prompt."""
        self.record: PromptRecord | None = None
        """Puts the run into the list of runs, if the rules have one."""

    def is_continued_by(self, event: AgentEvent) -> bool:
        """Return whether an event is the prompt that an agent makes of the reason to go on."""
        if event.kind != "prompt" or self.continuation is None:
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
        self._entries.append(_call("earlier", tool, {}, fence(_EARLIER, tool, "earlier", suspicious=suspicious)))

    def add_prompt(self, prompt: str) -> None:
        """Add a prompt of the user."""
        self._entries.append((Message("user", prompt),))

    def add_result(self, shown: ToolCallResult, tools: Iterable[Tool]) -> None:
        """Add a call and its result, and the tool that was called."""
        self.tools.update((tool.name, tool) for tool in tools)
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
