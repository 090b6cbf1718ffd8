"""Hookline's hooks as one hook of Claude Code: ``hookline claude-hook``.

:class:`Rules` are the hooks; :class:`Judge` fires the point that an event of Claude Code corresponds to, and translates
the verdict to what Claude Code understands. A prompt of the user and all that follows is one run, so hooks keep their
state for that long. What cannot be translated never lets an action through: it is denied, with the reason.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...._base.files import is_below
from ...._base.frozen import plain
from ...._base.own_files import OwnFile, protection_of, register_own_file
from ...._base.text import describe, error_text
from ...._base.workers import in_thread
from ...._kernel.errors import CallRefusedError, HookError, HooklineError
from ...._kernel.payloads import (
    ApprovalAnswer,
    ApprovalRequest,
    Compaction,
    PromptBuild,
    RunStart,
    SessionStart,
    Stopping,
    ToolCallRequest,
    ToolCallResult,
    ToolPath,
)
from ...._kernel.points import (
    AFTER_TOOL,
    APPROVAL_REQUESTED,
    BEFORE_COMPACTION,
    BEFORE_PROMPT_BUILD,
    BEFORE_TOOL,
    ON_RUN_END,
    ON_RUN_START,
    ON_STOP,
    SESSION_START,
    TOOL_END_WITH_PATH,
    Point,
)
from ...._kernel.registry import HookRegistry
from ...._kernel.results import HookAction, HookResult, Verdict
from ...._kernel.scope import scope_of
from ...._kernel.state import AgentResult
from ...._kernel.values import Ids, Message, StopSignal, ToolCall
from ...._run.context import AgentContext, services_of
from ...._run.halt import Halt
from ...._run.session import Session
from ....config.errors import ConfigError
from ....config.loading import load_hooks
from ....config.sources import load
from ....config.trust import TrustStore, check_trust, project_files, reference_files, trust_variable, trusted_files
from ....hooks._injection.fence import as_fenced, fence, fenced, unfenced
from ....plugins.trust import is_installed, only_trusted
from ....tools.registry import ToolRegistry
from ..protocol import EVENTS as KNOWN_EVENTS
from ..protocol import MAX_TEXT, HookInput, HookOutput, Permission, SpecificOutput, ToolMap
from .hosts import CLAUDE_CODE, CODEX, detect
from .refusal import CommandOutput, refusal, with_text
from .rendering import prevented_call, render
from .searches import ExcludeSecrets
from .tools import SEARCHES, judged_argument, tools_for

if TYPE_CHECKING:
    from ....stores.runs import RunStore
    from ....tools._tool import Tool
    from .hosts import Host
    from .recording import PromptRecord

log = logging.getLogger("hookline")

EVENTS: dict[str, tuple[Point[Any], ...]] = {
    "SessionStart": (SESSION_START,),
    "UserPromptSubmit": (ON_RUN_START, BEFORE_PROMPT_BUILD),
    "PreToolUse": (BEFORE_TOOL, APPROVAL_REQUESTED),
    "PermissionRequest": (APPROVAL_REQUESTED,),
    "PostToolUse": (AFTER_TOOL, TOOL_END_WITH_PATH),
    "PostToolUseFailure": (AFTER_TOOL, TOOL_END_WITH_PATH),
    "PreCompact": (BEFORE_COMPACTION,),
    "Stop": (ON_STOP, ON_RUN_END),
    "SubagentStop": (ON_STOP, ON_RUN_END),
}
"""The events, each with the points that fire. At other events of Claude Code and Codex, nothing happens."""

BEGINNINGS = frozenset(("UserPromptSubmit", "PreToolUse", "PermissionRequest"))
"""The events at which something begins: they are blocked while a stop switch is on."""

WITHOUT_POINT = (KNOWN_EVENTS | {"Interrupt"}) - EVENTS.keys()

FIRED = frozenset(point for points in EVENTS.values() for point in points)

MAX_KEEP_GOING = 3
"""How often hooks may keep a run going. Each time costs the user a turn of Claude Code."""
MAX_SESSIONS = 200
"""Sessions whose state is kept. The one that was not used for the longest time is forgotten first."""
MAX_RUNS = 50
"""Runs of a session whose state is kept: the current one, and those of its subagents."""
MAX_ENTRIES = 200
"""Prompts and results of a session that are kept for guards, and beyond them those with suspicious text."""
MAX_READ = 1000
"""Sessions that have read untrusted text are remembered, for the next process too."""
_MAX_TEXT = 20_000
"""Characters of a result that are kept."""

_USUAL_TOOLS = ToolMap()


class Rules:
    """The hooks that protect a session, and the files that they come from."""

    def __init__(
        self,
        registry: HookRegistry,
        files: Iterable[Path] = (),
        trusted: ExitStack | None = None,
        projects: Sequence[RunStore] = (),
    ) -> None:
        self.registry = registry
        self.projects = tuple(projects)
        """The stores of runs of the configuration files: their stop switches apply, and the first lists the runs."""
        self.trusted = trusted
        """Keeps the check of imported modules active."""
        loaded = [getattr(module, "__file__", None) for module in list(_modules())]
        paths = {str(path.resolve()) for path in files} | {str(Path(name).resolve()) for name in loaded if name}
        self.files = {path: _stamp(path) for path in sorted(paths) if not is_installed(Path(path))}
        for path in self.files:
            register_own_file(self, OwnFile(path, "a rule of this session, or code that it imports"))
        registry.register(KeepRules())
        registry.register(ExcludeSecrets(registry))

    @classmethod
    def load(cls, references: Sequence[str]) -> Rules:
        """Load hooks from files, modules, configuration files and by the names of built-in hooks.

        Raises:
            HooklineError: a hook cannot be loaded, or a configuration file is not trusted.
        """
        registry, trusted, files = HookRegistry(), ExitStack(), []
        projects: list[RunStore] = []
        for reference in references:
            if reference.endswith(".toml"):
                files.append(Path(reference))
                projects += _load_configuration(Path(reference), registry, trusted)
                continue
            files += reference_files([reference], Path.cwd())
            hooks, plugins = load_hooks([reference], Path.cwd())
            for hook in hooks:
                hook.register(registry)
            for plugin in plugins:
                for each in plugin.hooks:
                    registry.register(each, plugin=plugin.name)
        if not len(registry):
            raise ConfigError(f"{', '.join(references)}: there are no hooks, so nothing would be protected")
        return cls(registry, files, trusted, projects)

    async def halt(self) -> Halt | None:
        """Return the halt of the projects of the configuration files, or ``None``."""
        found = [await in_thread(project.halts.current) for project in self.projects]
        return next(filter(None, found), None)

    def changed(self) -> bool:
        """Return whether one of the files was changed since it was loaded."""
        return any(_stamp(path) != stamp for path, stamp in self.files.items())

    def not_called(self) -> list[str]:
        """Return what has no effect: hooks at points without an event, and what hooks do in Hookline's own loop."""
        stack = self.registry.stack
        found: dict[str, list[str]] = {}
        for point in sorted(stack.points - FIRED):
            for entry in stack.entries(point):
                found.setdefault(entry.name, []).append(str(point))
        unused = [f"{name} at {', '.join(points)}" for name, points in found.items()]
        for hooks, what in (
            (stack.limiting, "limits"),
            (stack.instruments, "recording"),
            (stack.wrappers, "context managers"),
            ([each for each in stack.listeners if not getattr(each, "wants_events_outside_runs", False)], "events"),
        ):
            unused += [f"the {what} of {getattr(hook, 'name', None) or type(hook).__name__}" for hook in hooks]
        return unused

    def events(self) -> list[str]:
        """Return the events at which a hook is called. ``SessionStart`` is for the note on hooks that are not."""
        points = self.registry.stack.points
        return [event for event, fired in EVENTS.items() if event == "SessionStart" or not points.isdisjoint(fired)]


class KeepRules:
    """Asks before a tool changes the rules, or another file that controls the session, if no guard blocks that."""

    points = frozenset({BEFORE_TOOL})
    phase = "guard"
    priority = 100

    def __call__(self, point: str, ctx: Any, request: ToolCallRequest) -> HookResult | None:
        """Ask if a path of the call is one of these files."""
        tool = ctx.tool_registry.get(request.name)
        if tool is None or tool.effects == {"execute"} or not tool.may("write"):
            return None
        for path in tool.paths(request.arguments):
            target = os.path.join(tool.folder, os.path.expanduser(path))
            if protection_of(target) is not None:
                return HookResult.ask(f"{path:.200} decides what this session may do. Change it?")
        return None


class _PromptRun:
    """What follows one prompt, of the session or of one of its subagents.

    Args:
        given: the first event.
        prompt: the prompt.
        earlier: the conversation before it.
    """

    def __init__(self, given: HookInput, prompt: str, earlier: _Conversation) -> None:
        self.ctx: AgentContext[Any] = AgentContext(session=Session(given.session_id, platform="claude-code"))
        self.ids = Ids(
            run_id=given.prompt_id or self.ctx.new_id("run"), session_id=given.session_id, agent="claude-code"
        )
        services_of(self.ctx).ids = self.ids
        services_of(self.ctx).agent_name = "claude-code"
        services_of(self.ctx).tools = ToolRegistry(earlier.tools.values())
        scope = scope_of(self.ctx)
        scope.accept_state(scope.state.replace(messages=earlier.messages))
        self.conversation = earlier
        self.prompt = prompt
        self.prompt_id = given.prompt_id
        self.calls = 0
        self.kept_going = 0
        self.record: PromptRecord | None = None
        """Puts the run into the list of runs, if the rules have one."""


class _Conversation:
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


class _Session:
    """One session of Claude Code."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.conversation = _Conversation()
        self.runs: OrderedDict[str, _PromptRun] = OrderedDict()

    def run(self, given: HookInput) -> _PromptRun:
        """Return the run that an event belongs to: a new prompt starts a new one."""
        key = given.agent_id or ""
        run = self.runs.get(key)
        is_new = run is None or given.hook_event_name == "UserPromptSubmit"
        is_new = is_new or (given.prompt_id is not None and run is not None and run.prompt_id != given.prompt_id)
        if is_new or run is None:
            run = self.runs[key] = _PromptRun(given, given.prompt or "", self.conversation)
            while len(self.runs) > MAX_RUNS:
                self.runs.popitem(last=False)
        return run


class Judge:
    """Answers the events of Claude Code, and those of other agents that have the same form.

    Args:
        rules: the hooks.
        tools: the names of tools on both sides.
        sandboxed: whether Claude Code runs commands in its own sandbox, which some guards require.
        allow_rewritten: whether a call that a hook has changed runs without asking the user.
        read_before: which sessions have read untrusted text.
    """

    def __init__(
        self,
        rules: Rules,
        tools: ToolMap | None = None,
        *,
        sandboxed: bool = False,
        allow_rewritten: bool = False,
        read_before: ReadBefore | None = None,
    ) -> None:
        self.rules = rules
        self.tools = ToolMap() if tools is None else tools
        self.sandboxed, self.allow_rewritten = sandboxed, allow_rewritten
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._read_before = ReadBefore() if read_before is None else read_before

    async def answer(self, variables: str, data: bytes, seconds: float | None = None) -> CommandOutput:
        """Return the answer to one event, as Claude Code sends it on stdin.

        Args:
            variables: what the environment says about the agent that sent it (:func:`~.hosts.environment`).
            data: the JSON object.
            seconds: after this time, the answer is a refusal.
        """
        try:
            found = msgspec.json.decode(data)
            given = msgspec.convert(found, HookInput)
            host = detect(variables, found)
            _check(given, host)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return refusal(variables, data, f"the input is not an event of Claude Code: {error_text(error)}")
        if given.hook_event_name == "SessionEnd":
            self._sessions.pop(given.session_id, None)
        if given.hook_event_name in WITHOUT_POINT:
            return CommandOutput()
        session = self._session(given.session_id)
        try:
            async with asyncio.timeout(seconds), session.lock:
                if given.hook_event_name in BEGINNINGS and (halt := await self.rules.halt()) is not None:
                    return refusal(variables, data, halt.text)
                output = await self._judge(session, given, host)
        except (HookError, CallRefusedError) as error:
            log.error("%s", describe(error))
            hook = f"hook {error.hook!r}" if isinstance(error, HookError) else "a hook"
            return refusal(variables, data, f"{hook} failed", error_text(error))
        except TimeoutError:
            return refusal(variables, data, f"the hooks did not answer within {seconds:g} s")
        except Exception as error:  # whatever it is, nothing may run because of it
            log.exception("%s could not be judged", given.hook_event_name)
            return refusal(variables, data, f"the event could not be judged: {type(error).__name__}", describe(error))
        return render(host, given, output)

    def _session(self, ident: str) -> _Session:
        session = self._sessions.get(ident)
        if session is None:
            session = self._sessions[ident] = _Session()
            if (earlier := self._read_before.of(ident)) is not None:
                session.conversation.add_earlier(earlier[0], suspicious=earlier[1])
        self._sessions.move_to_end(ident)
        while len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return session

    async def _judge(self, session: _Session, given: HookInput, host: Host) -> HookOutput | None:
        run = session.run(given)
        if run.record is None:
            run.record = self._new_record(session, run, given, host)
        try:
            output = await self._answer(run, given, host)
        except Exception:  # the action is refused
            await run.record.store(given, self._tool(given), _permission("deny", ""), "")
            raise
        await run.record.store(given, self._tool(given), output, prevented_call(host, given, output))
        return output

    def _new_record(self, session: _Session, run: _PromptRun, given: HookInput, host: Host) -> PromptRecord:
        from .recording import PromptRecord

        main = session.runs.get("") if given.agent_id else None
        outer = None if main is None else main.record
        store = next(iter(self.rules.projects), None)
        return PromptRecord(store, self.rules.registry, run.ctx, run.ids, outer, host)

    def _tool(self, given: HookInput) -> str:
        """Return the tool of an event under our name."""
        return self.tools.to_hookline(given.tool_name, {})[0] if given.tool_name else ""

    async def _answer(self, run: _PromptRun, given: HookInput, host: Host) -> HookOutput | None:
        match given.hook_event_name:
            case "SessionStart":
                return await self._session_start(run, given)
            case "UserPromptSubmit":
                return await self._prompt(run, given)
            case "PreToolUse":
                return self._in_their_words(await self._before_tool(run, given, host), given)
            case "PermissionRequest":
                return await self._permission(run, given)
            case "PostToolUse" | "PostToolUseFailure":
                return await self._after_tool(run, given)
            case "PreCompact":
                return await self._compaction(run, given)
            case _:
                return await self._stop(run, given)

    async def _fire(self, run: _PromptRun, point: Point[Any], payload: Any) -> Verdict:
        verdict = await self.rules.registry.fire(point, payload, ctx=run.ctx)
        for failure in verdict.failures:
            log.warning("hook %r failed at %s: %s", failure.source, point, failure.message)
        return verdict

    # The session and its prompts.

    async def _session_start(self, run: _PromptRun, given: HookInput) -> HookOutput | None:
        await self._fire(run, SESSION_START, SessionStart(given.session_id, platform="claude-code", ids=run.ids))
        if unused := self.rules.not_called():
            return HookOutput(system_message=_cut(f"Hookline: this has no effect in Claude Code: {'; '.join(unused)}"))
        return None

    async def _prompt(self, run: _PromptRun, given: HookInput) -> HookOutput | None:
        task = given.prompt or ""
        verdict = await self._fire(run, ON_RUN_START, RunStart(task, run.ids))
        if (stopped := _stopped(verdict)) is not None:
            return HookOutput(decision="block", reason=stopped)
        if verdict.payload.task != task:
            changed = (
                f"A hook changed the prompt, which Claude Code cannot do. Send this instead:\n{verdict.payload.task}"
            )
            return HookOutput(decision="block", reason=_cut(changed))
        run.conversation.add_prompt(task)
        merged = (await self._fire(run, BEFORE_PROMPT_BUILD, PromptBuild(ids=run.ids))).value
        if merged is None:
            return None
        if merged.override_system is not None:
            log.warning("a hook replaces the system prompt, which Claude Code cannot do: its text is added instead")
        texts = (merged.prepend_system, merged.override_system, merged.append_system)
        return _context("UserPromptSubmit", "\n\n".join(filter(None, texts)))

    # Tool calls.

    async def _before_tool(self, run: _PromptRun, given: HookInput, host: Host) -> HookOutput | None:
        if host != CLAUDE_CODE and (problem := self._unknown_call(given)):
            return _permission("deny", problem)
        request, added = self._request(run, given)
        verdict = await self._fire(run, BEFORE_TOOL, request)
        asks = verdict.asks
        if asks and verdict.action is not HookAction.BLOCK and (answer := await self._approval(run, verdict)):
            if answer.deny is not None:
                return _permission("deny", answer.deny)
            if answer.edit is not None:
                edited = verdict.payload.replace(arguments=answer.edit)
                verdict = await self._fire(run, BEFORE_TOOL, edited)
            asks = ()
        if (stopped := _stopped(verdict)) is not None:
            return msgspec.structs.replace(_permission("deny", stopped), continue_=False, stop_reason=stopped)
        if verdict.action is HookAction.BLOCK:
            return _permission("deny", str(verdict.value))
        if verdict.answer is not None:
            return _permission("deny", f"A hook answered instead of the tool: {_text(verdict.answer.value)}")
        if verdict.payload.name != request.name:
            return _permission("deny", f"A hook changed the tool to {verdict.payload.name}: call that one instead.")
        changed = None
        if verdict.payload.arguments != request.arguments:
            changed = self._input(given, verdict.payload, added)
        if asks:
            return _permission("ask", "\n".join(question.text for question in asks), changed)
        if changed is not None:
            # Codex applies its own permissions to a changed call, also if the answer is "allow".
            free = self.allow_rewritten or given.permission_mode == "bypassPermissions" or host == CODEX
            free = free or _is_narrowed(given, changed)
            return _permission("allow" if free else "ask", "A hook of Hookline changed this call.", changed)
        return None

    def _unknown_call(self, given: HookInput) -> str:
        """Return why guards cannot judge a call of another agent, whose tools may have other names and arguments."""
        name = given.tool_name or ""
        if name.startswith("mcp__"):
            return ""
        judged = judged_argument(name)
        if judged is None and name not in {names.claude for names in self.tools}:
            return f"No guard knows the tool {name:.80} of this coding agent. Name it with --tool {name:.80}=NAME."
        _, arguments = _USUAL_TOOLS.to_hookline(name, given.tool_input or {})
        if judged is not None and not isinstance(arguments.get(judged), str):
            return f"This call of {name:.80} has no {judged}, so no guard can judge it."
        return ""

    def _in_their_words(self, output: HookOutput | None, given: HookInput) -> HookOutput | None:
        """Return a decision whose reason calls the tool as the model does. Names without ``_`` may be plain words."""
        specific = None if output is None else output.hook_specific_output
        theirs = given.tool_name or ""
        ours, _ = self.tools.to_hookline(theirs, {})
        if output is None or specific is None or not specific.permission_decision_reason or "_" not in ours:
            return output
        reason = re.sub(rf"\b{re.escape(ours)}\b", lambda _: theirs, specific.permission_decision_reason)
        specific = msgspec.structs.replace(specific, permission_decision_reason=reason)
        return msgspec.structs.replace(output, hook_specific_output=specific)

    async def _approval(self, run: _PromptRun, verdict: Verdict) -> ApprovalAnswer | None:
        """Ask the hooks that approve calls. Without an answer, the user of Claude Code decides."""
        request = ApprovalRequest(verdict.payload, verdict.asks, verdict.payload.digest)
        return _answer((await self._fire(run, APPROVAL_REQUESTED, request)).value)

    async def _permission(self, run: _PromptRun, given: HookInput) -> HookOutput | None:
        from ...._kernel.payloads import Question
        from ..protocol import PermissionDecision

        request, added = self._request(run, given)
        question = Question("Claude Code asks for permission.", "claude-code")
        verdict = await self._fire(run, APPROVAL_REQUESTED, ApprovalRequest(request, (question,), request.digest))
        answer = _answer(verdict.value)
        if answer is None:
            return None
        if answer.deny is not None:
            decision = PermissionDecision("deny", message=_cut(answer.deny))
        elif answer.edit is not None:
            edited = request.replace(arguments=answer.edit)
            judged = await self._fire(run, BEFORE_TOOL, edited)
            if judged.action is not HookAction.CONT or judged.asks or judged.answer or judged.signals:
                return None  # another decision than the approver's: leave it to the user
            decision = PermissionDecision("allow", self._input(given, judged.payload, added))
        else:
            decision = PermissionDecision("allow")
        return HookOutput(hook_specific_output=SpecificOutput(hook_event_name="PermissionRequest", decision=decision))

    async def _after_tool(self, run: _PromptRun, given: HookInput) -> HookOutput | None:
        request, _ = self._request(run, given)
        run.calls += 1
        failed = given.hook_event_name == "PostToolUseFailure"
        result = ToolCallResult(
            request.id,
            request.name,
            request.arguments,
            None if failed else given.tool_response,
            (given.error or "The call failed.") if failed else None,
            "error" if failed else "ok",
            (given.duration_ms or 0.0) / 1000,
            ids=run.ids,
        )
        verdict = await self._fire(run, AFTER_TOOL, result)
        await self._report_paths(run, request)
        shown: ToolCallResult = verdict.payload
        run.conversation.add_result(shown, services_of(run.ctx).tools or ())
        mark, tool = fenced(shown.text), run.conversation.tools.get(shown.name)
        if mark is not None or tool is None or tool.untrusted:
            self._read_before.add(given.session_id, shown.name, suspicious=mark is not None and mark[1])
        decision, reason, output = None, None, msgspec.UNSET
        if not failed and shown.error is not None:
            decision, reason, output = "block", shown.error, with_text(given.tool_response, shown.error)
        elif not failed and shown.result != result.result:
            output = with_text(given.tool_response, plain(shown.result))
        elif failed and shown.text != result.text:
            decision, reason = "block", f"A hook changed this message to: {shown.text}"
        if verdict.action is HookAction.RETRY:
            decision, reason = "block", verdict.value or "The result is not good enough: call the tool again."
        stopped = _stopped(verdict)
        specific = (
            None
            if output is msgspec.UNSET
            else SpecificOutput(hook_event_name=given.hook_event_name, updated_tool_output=output)
        )
        return HookOutput(
            continue_=stopped is None,
            stop_reason=stopped,
            decision=decision,  # type: ignore[arg-type]
            reason=None if reason is None else _cut(reason),
            hook_specific_output=specific,
        )

    async def _report_paths(self, run: _PromptRun, request: ToolCallRequest) -> None:
        registry = run.ctx.tool_registry
        tool = None if registry is None else registry.get(request.name)
        if tool is not None and TOOL_END_WITH_PATH in self.rules.registry.stack.points:
            for path in tool.paths(request.arguments):
                payload = ToolPath(request.name, path, tool.folder, request.id, run.ids)
                await self._fire(run, TOOL_END_WITH_PATH, payload)

    def _request(self, run: _PromptRun, given: HookInput) -> tuple[ToolCallRequest, str]:
        """Return a call under our names, and the name of an argument that was added for guards, if any."""
        claude, cwd = given.tool_name or "", given.cwd or os.getcwd()
        name, arguments = self.tools.to_hookline(claude, given.tool_input or {})
        added = ""
        if claude in SEARCHES and not arguments.get("path"):
            added, arguments["path"] = "path", cwd
        services_of(run.ctx).tools = tools_for(claude, name, cwd, self.sandboxed)
        ident = given.tool_use_id or run.ctx.new_id("call")
        return ToolCallRequest(ident, name, arguments, ids=run.ids), added

    def _input(self, given: HookInput, request: ToolCallRequest, added: str) -> dict[str, Any]:
        arguments = plain(request.arguments)
        if added and arguments.get(added) == (given.cwd or os.getcwd()):
            del arguments[added]
        return self.tools.input_of(given.tool_name or "", arguments)

    # The end of a run.

    async def _compaction(self, run: _PromptRun, given: HookInput) -> HookOutput | None:
        verdict = await self._fire(run, BEFORE_COMPACTION, Compaction((), given.trigger or "", run.ids))
        if verdict.action is HookAction.BLOCK:
            return HookOutput(decision="block", reason=_cut(str(verdict.value)))
        return None

    async def _stop(self, run: _PromptRun, given: HookInput) -> HookOutput | None:
        verdict = await self._fire(run, ON_STOP, Stopping((StopSignal("completed"),), run.ids))
        if verdict.action is HookAction.KEEP_GOING and run.kept_going < MAX_KEEP_GOING:
            run.kept_going += 1
            return HookOutput(decision="block", reason=_cut(verdict.value or "Continue: the task is not finished."))
        reply = given.last_assistant_message or ""
        result = AgentResult(reply, task=run.prompt, tool_calls=run.calls, ids=run.ids, output=reply)
        await self._fire(run, ON_RUN_END, result)
        return None


def _is_narrowed(given: HookInput, changed: Mapping[str, Any]) -> bool:
    """Return whether a search in the working folder, for which Claude Code asks nobody, got only another glob."""
    before, cwd = given.tool_input or {}, os.path.realpath(given.cwd or os.getcwd())
    place = os.path.realpath(os.path.join(cwd, before.get("path") or ""))
    same = {**before, "glob": None} == {**changed, "glob": None}
    return given.tool_name == "Grep" and same and is_below(place, cwd)


def _check(given: HookInput, host: Host) -> None:
    event = given.hook_event_name
    if event not in EVENTS and event not in WITHOUT_POINT:
        raise ValueError(f"{event!r:.80} is not known")
    if event == "PostToolUse" and given.tool_response is None and host != CLAUDE_CODE:
        raise ValueError("PostToolUse needs tool_response")
    if event in ("PreToolUse", "PermissionRequest", "PostToolUse", "PostToolUseFailure") and (
        not given.tool_name or given.tool_input is None
    ):
        raise ValueError(f"{event} needs tool_name and tool_input")
    if event == "UserPromptSubmit" and given.prompt is None:
        raise ValueError("UserPromptSubmit needs prompt")


def _answer(given: ApprovalAnswer | None) -> ApprovalAnswer | None:
    """Return the answer of an approver. One that waits denies the call, which cannot be suspended."""
    if given is not None and given.wait:
        return ApprovalAnswer(deny="Nobody has approved this call yet, and this coding agent cannot wait.")
    return given


def _permission(decision: Permission, reason: str, changed: dict[str, Any] | None = None) -> HookOutput:
    return HookOutput(
        hook_specific_output=SpecificOutput(
            hook_event_name="PreToolUse",
            permission_decision=decision,
            permission_decision_reason=_cut(reason),
            updated_input=changed,
        )
    )


def _context(event: str, text: str) -> HookOutput | None:
    if not text:
        return None
    return HookOutput(hook_specific_output=SpecificOutput(hook_event_name=event, additional_context=_cut(text)))


def _stopped(verdict: Verdict) -> str | None:
    """Return why the run must not continue; ``None`` if it may."""
    if verdict.action is HookAction.END:
        return _cut(str(verdict.value) or f"Hook {verdict.hook!r} ended the run.")
    for signal in verdict.signals:
        return _cut(signal.message or f"Hook {signal.hook!r} stopped the run.")
    return None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."


def _stamp(path: str) -> tuple[int, ...]:
    try:
        state = os.stat(path)
    except OSError:
        return ()
    return (state.st_mtime_ns, state.st_size, state.st_ino)


def _modules() -> Iterable[Any]:
    import sys

    return sys.modules.values()


def _load_configuration(path: Path, registry: HookRegistry, trusted: ExitStack) -> list[RunStore]:
    """Add the hooks of a configuration file to a registry, and return its store of runs, if it has one."""
    from ....config.factory import KEEP_DAYS, build_hooks, build_plugins
    from ....stores.runs import RunStore

    config = load(file=path)
    if config.file is None:
        raise ConfigError(f"there is no file {path}")
    if not trust_variable(os.environ):
        store, files = TrustStore(), project_files(config)
        check = check_trust(store, config.file.resolve(), config.digest, files)
        if not check.passed:
            raise ConfigError(
                f"{check.path} or its code is not trusted, or has changed: read the files, then run "
                f"'hookline trust {check.path}'"
            )
        trusted.enter_context(only_trusted(trusted_files(store, files)))
    built, plugins = build_hooks(config.settings, config.home, config.file)
    registry.extend(built)
    manager = build_plugins(config.settings, config.home)
    manager.attach(registry)
    for name in config.settings.plugins:
        manager.activate(name)
    for plugin in plugins:
        for each in plugin.hooks:
            registry.register(each, plugin=plugin.name)
    runs = config.settings.runs
    return [] if runs is None else [RunStore(runs, keep_days=KEEP_DAYS)]


def parse_tools(entries: Iterable[str]) -> ToolMap:
    """Return the map of tools with changes such as ``Bash=terminal`` and ``Bash.command=line``.

    Raises:
        HooklineError: an entry has another form.
    """
    changes: dict[str, dict[str, Any]] = {}
    usual = {names.claude: names for names in ToolMap()}
    for entry in entries:
        theirs, equals, ours = entry.partition("=")
        tool, dot, argument = theirs.partition(".")
        if not (equals and tool and ours) or bool(dot) != bool(argument):
            raise HooklineError(f"--tool {entry}: write TOOL=NAME, or TOOL.ARGUMENT=NAME")
        change = changes.setdefault(tool, {})
        if argument:
            known = usual[tool].arguments if tool in usual else {}
            change.setdefault("arguments", dict(known))[argument] = ours
        else:
            change["name"] = ours
    return ToolMap(changes)
