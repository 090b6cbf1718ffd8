"""Hookline's hooks as one hook of a coding agent.

:class:`Judge` fires the points that an event of the agent corresponds to, and turns the verdicts into an answer. A
prompt of the user and all that follows is one run, so hooks keep their state for that long. What cannot be translated
never lets an action through: it is denied, with the reason.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ..._base.files import is_below
from ..._base.frozen import plain
from ..._base.text import describe, error_text
from ..._kernel.errors import CallRefusedError, HookError
from ..._kernel.payloads import (
    ApprovalAnswer,
    ApprovalRequest,
    Compaction,
    PromptBuild,
    Question,
    RunStart,
    SessionStart,
    Stopping,
    ToolCallRequest,
    ToolCallResult,
    ToolPath,
)
from ..._kernel.points import (
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
from ..._kernel.results import HookAction, Verdict
from ..._kernel.state import AgentResult
from ..._kernel.values import StopSignal
from ..._run.context import services_of
from ...hooks._injection.fence import fenced
from .codecs.base import Codec, cut, with_text
from .events import BEGINNINGS, NOTHING, AgentEvent, Answer, CommandOutput
from .last_call import LastCall
from .patches import PatchError, deletes, folder_of, patches_in
from .recording import PromptRecord
from .rules import Rules
from .sessions import AgentSession, PromptRun, ReadBefore
from .tools import ToolMap, tools_for
from .typed_input import reads_typed_commands

log = logging.getLogger("hookline")

MAX_KEEP_GOING = 3
"""How often hooks may keep a run going. Each time costs the user a turn of the agent."""
MAX_SESSIONS = 200
"""Sessions whose state is kept. The one that was not used for the longest time is forgotten first."""


class Judge:
    """Answers the events of a coding agent.

    Args:
        rules: the hooks.
        codec: the form of the events and answers.
        tools: changes of the names of tools, such as ``Bash=terminal`` and ``Bash.command=line``.
        sandboxed: whether the agent runs commands in its own sandbox, which some guards require.
        allow_rewritten: whether a call that a hook has changed runs without asking the user.
        read_before: which sessions have read untrusted text.

    Raises:
        HooklineError: an entry of ``tools`` has another form.
    """

    def __init__(
        self,
        rules: Rules,
        codec: Codec,
        tools: Iterable[str] = (),
        *,
        sandboxed: bool = False,
        allow_rewritten: bool = False,
        read_before: ReadBefore | None = None,
    ) -> None:
        self.rules = rules
        self._codec = codec
        self._changes = tuple(tools)
        self._maps: dict[Codec, ToolMap] = {codec: ToolMap(codec, self._changes)}
        self._sandboxed, self._allow_rewritten = sandboxed, allow_rewritten
        self._sessions: OrderedDict[str, AgentSession] = OrderedDict()
        self._read_before = ReadBefore() if read_before is None else read_before
        self.last_call: LastCall | None = None
        """The tool call that was judged last."""

    @property
    def tools(self) -> ToolMap:
        """The names of tools on both sides."""
        return self._maps[self._codec]

    async def answer(self, variables: str, data: bytes, seconds: float | None = None) -> CommandOutput:
        """Return the answer to one event, as the agent sends it on stdin.

        Args:
            variables: what the environment says about the agent that sent it (:func:`~.options.environment`).
            data: the JSON object.
            seconds: after this time, the answer is a refusal.
        """
        codec, event = self._codec, None
        try:
            given = msgspec.json.decode(data)
            codec = codec.for_event(variables, given)
            event = codec.read(given)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return codec.refuse(None, f"the input is not an event of {codec.title}: {error_text(error)}", "")
        if event.kind == "session_end":
            self._sessions.pop(event.session, None)
        if event.kind in ("ignored", "session_end"):
            return codec.write(event, NOTHING)
        session = self._session(event.session)
        call = _Call(self, codec, self._map(codec), event)
        try:
            async with asyncio.timeout(seconds), session.lock:
                if event.kind in BEGINNINGS and (halt := await self.rules.halt()) is not None:
                    return codec.refuse(event, halt.text, "")
                answer = await self._judge(session, call)
        except (HookError, CallRefusedError) as error:
            log.error("%s", describe(error))
            hook = f"hook {error.hook!r}" if isinstance(error, HookError) else "a hook"
            return codec.refuse(event, f"{hook} failed", error_text(error))
        except TimeoutError:
            return codec.refuse(event, f"the hooks did not answer within {seconds:g} s", "")
        except Exception as error:  # whatever it is, nothing may run because of it
            log.exception("%s could not be judged", event.name)
            return codec.refuse(event, f"the event could not be judged: {type(error).__name__}", describe(error))
        return codec.write(event, answer)

    def _map(self, codec: Codec) -> ToolMap:
        if codec not in self._maps:
            self._maps[codec] = ToolMap(codec, self._changes)
        return self._maps[codec]

    def _session(self, ident: str) -> AgentSession:
        session = self._sessions.get(ident)
        if session is None:
            session = self._sessions[ident] = AgentSession()
            if (earlier := self._read_before.of(ident)) is not None:
                session.conversation.add_earlier(earlier[0], suspicious=earlier[1])
        self._sessions.move_to_end(ident)
        while len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return session

    async def _judge(self, session: AgentSession, call: _Call) -> Answer:
        run = session.run(call.event, call.codec.platform)
        if run.record is None:
            run.record = self._new_record(session, run, call)
        try:
            answer = call.codec.settle(call.event, await call.answer(run))
        except Exception:  # the action is refused
            self._note_call(call.event, Answer(deny=""))
            await run.record.store(call.event, call.tool, Answer(deny=""))
            raise
        self._note_call(call.event, answer)
        await run.record.store(call.event, call.tool, answer)
        return answer

    def _note_call(self, event: AgentEvent, answer: Answer) -> None:
        if event.kind == "before_tool":
            self.last_call = LastCall.of(event.tool, answer)

    def _new_record(self, session: AgentSession, run: PromptRun, call: _Call) -> PromptRecord:
        main = session.runs.get("") if call.event.subagent else None
        outer = None if main is None else main.record
        is_run = call.event.kind != "session_start"
        store = next(iter(self.rules.projects), None) if is_run else None
        return PromptRecord(store, self.rules.registry, run.ctx, run.ids, outer)


class _Call:
    """One event, and the points that fire for it."""

    def __init__(self, judge: Judge, codec: Codec, tools: ToolMap, event: AgentEvent) -> None:
        self.codec, self.event = codec, event
        self._tools, self._rules, self._read_before = tools, judge.rules, judge._read_before
        self._sandboxed, self._allow_rewritten = judge._sandboxed, judge._allow_rewritten
        self.tool = tools.name_of(event.tool) if event.tool else ""
        """The tool under our name."""

    async def answer(self, run: PromptRun) -> Answer:
        match self.event.kind:
            case "session_start":
                return await self._session_start(run)
            case "prompt":
                return await self._prompt(run)
            case "before_tool":
                return self._in_their_words(await self._before_tool(run))
            case "permission":
                return await self._permission(run)
            case "after_tool":
                return await self._after_tool(run)
            case "compaction":
                return await self._compaction(run)
            case _:
                return await self._stop(run)

    async def _fire(self, run: PromptRun, point: Point[Any], payload: Any) -> Verdict:
        verdict = await self._rules.registry.fire(point, payload, ctx=run.ctx)
        for failure in verdict.failures:
            log.warning("hook %r failed at %s: %s", failure.source, point, failure.message)
        return verdict

    # The session and its prompts.

    async def _session_start(self, run: PromptRun) -> Answer:
        platform = self.codec.platform
        await self._fire(run, SESSION_START, SessionStart(self.event.session, platform=platform, ids=run.ids))
        if unused := self._rules.not_called():
            return Answer(notice=cut(f"Hookline: this has no effect in {self.codec.title}: {'; '.join(unused)}"))
        return NOTHING

    async def _prompt(self, run: PromptRun) -> Answer:
        if run.is_continued_by(self.event):  # no user wrote it
            return NOTHING
        task, title = self.event.prompt, self.codec.title
        verdict = await self._fire(run, ON_RUN_START, RunStart(task, run.ids))
        if (stopped := _stopped(verdict)) is not None:
            return Answer(deny=stopped)
        if verdict.payload.task != task:
            instead = f"A hook changed the prompt, which {title} cannot do. Send this instead:\n{verdict.payload.task}"
            return Answer(deny=instead)
        run.conversation.add_prompt(task)
        merged = (await self._fire(run, BEFORE_PROMPT_BUILD, PromptBuild(ids=run.ids))).value
        if merged is None:
            return NOTHING
        if merged.override_system is not None:
            log.warning("a hook replaces the system prompt, which %s cannot do: its text is added instead", title)
        texts = (merged.prepend_system, merged.override_system, merged.append_system)
        return Answer(context="\n\n".join(filter(None, texts)))

    # Tool calls.

    async def _before_tool(self, run: PromptRun) -> Answer:
        if unknown := self._unknown_call():
            return Answer(deny=unknown)
        request, added = self._request(run)
        if (hidden := await self._hidden_actions(run, request)) is not None:
            return Answer(deny=hidden)
        verdict = await self._fire(run, BEFORE_TOOL, request)
        asks = verdict.asks
        if asks and verdict.action is not HookAction.BLOCK and (answer := await self._approval(run, verdict)):
            if answer.deny is not None:
                return Answer(deny=answer.deny)
            if answer.edit is not None:
                edited = verdict.payload.replace(arguments=answer.edit)
                verdict = await self._fire(run, BEFORE_TOOL, edited)
            asks = ()
        if (stopped := _stopped(verdict)) is not None:
            return Answer(deny=stopped, stop=stopped)
        if verdict.action is HookAction.BLOCK:
            return Answer(deny=str(verdict.value))
        if verdict.answer is not None:
            return Answer(deny=f"A hook answered instead of the tool: {_text(verdict.answer.value)}")
        if verdict.payload.name != request.name:
            return Answer(deny=f"A hook changed the tool to {verdict.payload.name}: call that one instead.")
        changed = None
        if verdict.payload.arguments != request.arguments:
            changed = self._input(verdict.payload, added)
            if (hidden := await self._hidden_actions(run, verdict.payload)) is not None:
                return Answer(deny=hidden)
        if asks:
            return Answer(ask="\n".join(question.text for question in asks), changed=changed)
        if changed is not None:
            free = self._allow_rewritten or self.event.asks_nobody or self._is_narrowed(changed)
            return Answer(changed=changed, is_free=free)
        return NOTHING

    def _unknown_call(self) -> str:
        """Return why guards cannot judge a call, in agents whose tools are all known."""
        theirs, title = self.event.tool, self.codec.title
        if self.codec.knows_all_tools or self.codec.is_mcp(theirs):
            return ""
        known = self._tools.get(theirs)
        if known is None:
            return f"No guard knows the tool {theirs:.80} of {title}. Name it with --tool {theirs:.80}=NAME."
        judged = known.judged_argument
        if judged and not isinstance(self._tools.to_hookline(theirs, self.event.input)[1].get(judged), str):
            return f"This call of {theirs:.80} has no {judged}, so no guard can judge it."
        return ""

    async def _hidden_actions(self, run: PromptRun, request: ToolCallRequest) -> str | None:
        """Return why a call is denied for what it does beside its arguments; ``None`` if nothing is hidden in it.

        A command may contain patches, whose files guards judge as if they were calls of ``apply_patch``. A program that
        reads commands which the model types later is denied where no hook sees what is typed.
        """
        known = self._tools.get(self.event.tool)
        if known is None or known.kind not in ("shell", "apply_patch"):
            return None
        text = request.arguments.get("patch" if known.kind == "apply_patch" else "command")
        if not isinstance(text, str):
            return None
        if known.kind == "shell" and self.codec.hides_input and (program := reads_typed_commands(text)):
            return (
                f"{program} reads commands that are typed later, and {self.codec.title} shows them to no hook. "
                "Give it a script, or the commands with -c."
            )
        try:
            patches = patches_in(text, is_command=known.kind == "shell")
            folder = folder_of(text, self._cwd) if patches and known.kind == "shell" else self._cwd
        except PatchError as error:
            return f"This patch cannot be judged: {error}."
        if known.kind == "apply_patch":
            return None if patches else "This patch cannot be judged: it names no file."
        before = services_of(run.ctx).tools
        try:
            for patch in patches:
                tools = tools_for("apply_patch", "apply_patch", folder, deletes=deletes(patch))
                services_of(run.ctx).tools = tools
                inner = ToolCallRequest(request.id, "apply_patch", {"patch": patch}, ids=run.ids)
                verdict = await self._fire(run, BEFORE_TOOL, inner)
                if (reason := await self._inner_denial(run, verdict, inner)) is not None:
                    return reason
        finally:
            services_of(run.ctx).tools = before
        return None

    async def _inner_denial(self, run: PromptRun, verdict: Verdict, inner: ToolCallRequest) -> str | None:
        """Return why a patch inside a command is denied; ``None`` if it may be applied as it is."""
        if (stopped := _stopped(verdict)) is not None:
            return stopped
        if verdict.action is HookAction.BLOCK:
            return str(verdict.value)
        if verdict.answer is not None or verdict.payload.name != inner.name:
            return "A hook decided about the patch in this command. Apply it with the tool for patches."
        if verdict.payload.arguments != inner.arguments:
            return "A hook changed the patch in this command. Apply it with the tool for patches."
        if verdict.asks:
            answer = await self._approval(run, verdict)
            if answer is None or answer.edit is not None:
                return "\n".join(question.text for question in verdict.asks)
            return answer.deny
        return None

    def _in_their_words(self, answer: Answer) -> Answer:
        """Return an answer whose reasons call the tool as the model does. Names without ``_`` may be plain words."""
        if "_" not in self.tool or self.tool == self.event.tool:
            return answer
        pattern = rf"\b{re.escape(self.tool)}\b"

        def worded(text: str | None) -> str | None:
            return text if text is None else re.sub(pattern, lambda _: self.event.tool, text)

        return answer._replace(deny=worded(answer.deny), ask=worded(answer.ask))

    async def _approval(self, run: PromptRun, verdict: Verdict) -> ApprovalAnswer | None:
        """Ask the hooks that approve calls. Without an answer, the user of the agent decides."""
        request = ApprovalRequest(verdict.payload, verdict.asks, verdict.payload.digest)
        return _answer((await self._fire(run, APPROVAL_REQUESTED, request)).value)

    async def _permission(self, run: PromptRun) -> Answer:
        request, added = self._request(run)
        question = Question(f"{self.codec.title} asks for permission.", self.codec.platform)
        verdict = await self._fire(run, APPROVAL_REQUESTED, ApprovalRequest(request, (question,), request.digest))
        answer = _answer(verdict.value)
        if answer is None:
            return NOTHING
        if answer.deny is not None:
            return Answer(deny=answer.deny)
        if answer.edit is None:
            return Answer(allow=True)
        judged = await self._fire(run, BEFORE_TOOL, request.replace(arguments=answer.edit))
        if judged.action is not HookAction.CONT or judged.asks or judged.answer or judged.signals:
            return NOTHING  # another decision than the approver's: leave it to the user
        return Answer(allow=True, changed=self._input(judged.payload, added))

    async def _after_tool(self, run: PromptRun) -> Answer:
        event, (request, _) = self.event, self._request(run)
        run.calls += 1
        failed = event.error is not None
        result = ToolCallResult(
            request.id,
            request.name,
            request.arguments,
            event.result,
            event.error,
            "error" if failed else "ok",
            event.seconds,
            ids=run.ids,
        )
        verdict = await self._fire(run, AFTER_TOOL, result)
        await self._report_paths(run, request)
        shown: ToolCallResult = verdict.payload
        run.conversation.add_result(shown, services_of(run.ctx).tools or ())
        mark, tool = fenced(shown.text), run.conversation.tools.get(shown.name)
        if mark is not None or tool is None or tool.untrusted:
            self._read_before.add(event.session, shown.name, suspicious=mark is not None and mark[1])
        answer = Answer(stop=_stopped(verdict))
        if not failed and shown.error is not None:
            answer = answer._replace(note=shown.error, result=with_text(event.result, shown.error))
        elif not failed and shown.result != result.result:
            answer = answer._replace(result=with_text(event.result, plain(shown.result)))
        elif failed and shown.text != result.text:
            answer = answer._replace(note=f"A hook changed this message to: {shown.text}")
        if verdict.action is HookAction.RETRY:
            answer = answer._replace(note=verdict.value or "The result is not good enough: call the tool again.")
        return answer

    async def _report_paths(self, run: PromptRun, request: ToolCallRequest) -> None:
        registry = run.ctx.tool_registry
        tool = None if registry is None else registry.get(request.name)
        if tool is not None and TOOL_END_WITH_PATH in self._rules.registry.stack.points:
            for path in tool.paths(request.arguments):
                payload = ToolPath(request.name, path, tool.folder, request.id, run.ids)
                await self._fire(run, TOOL_END_WITH_PATH, payload)

    def _request(self, run: PromptRun) -> tuple[ToolCallRequest, str]:
        """Return a call under our names, and the name of an argument that was added for guards, if any."""
        theirs = self.event.tool
        name, arguments = self._tools.to_hookline(theirs, self.event.input)
        known = self._tools.get(theirs)
        added = ""
        if known is not None and known.searches and not arguments.get("path"):
            added, arguments["path"] = "path", self._cwd
        kind = None if known is None else known.kind
        moves = kind == "apply_patch" and deletes(str(arguments.get("patch", "")))
        services_of(run.ctx).tools = tools_for(
            kind,
            name,
            self._cwd,
            sandboxed=self._sandboxed,
            deletes=moves,
            takes_glob=known is not None and known.takes_glob,
        )
        return ToolCallRequest(self.event.call_id or run.ctx.new_id("call"), name, arguments, ids=run.ids), added

    @property
    def _cwd(self) -> str:
        return self.event.cwd or os.getcwd()

    def _input(self, request: ToolCallRequest, added: str) -> dict[str, Any]:
        arguments = plain(request.arguments)
        if added and arguments.get(added) == self._cwd:
            del arguments[added]
        return self._tools.input_of(self.event.tool, arguments)

    def _is_narrowed(self, changed: Mapping[str, Any]) -> bool:
        """Return whether a search in the working folder, for which Claude Code asks nobody, got only another glob."""
        before, cwd = self.event.input, os.path.realpath(self._cwd)
        path = before.get("path")
        place = os.path.realpath(os.path.join(cwd, path if isinstance(path, str) else ""))
        same = {**before, "glob": None} == {**changed, "glob": None}
        return self.event.tool == "Grep" and same and is_below(place, cwd)

    # The end of a run.

    async def _compaction(self, run: PromptRun) -> Answer:
        verdict = await self._fire(run, BEFORE_COMPACTION, Compaction((), self.event.trigger, run.ids))
        return Answer(deny=str(verdict.value)) if verdict.action is HookAction.BLOCK else NOTHING

    async def _stop(self, run: PromptRun) -> Answer:
        verdict = await self._fire(run, ON_STOP, Stopping((StopSignal("completed"),), run.ids))
        if verdict.action is HookAction.KEEP_GOING and run.kept_going < MAX_KEEP_GOING:
            run.kept_going += 1
            reason = verdict.value or "Continue: the task is not finished."
            run.continuation = reason.strip()
            return Answer(go_on=reason)
        reply = self.event.reply
        result = AgentResult(reply, task=run.prompt, tool_calls=run.calls, ids=run.ids, output=reply)
        await self._fire(run, ON_RUN_END, result)
        return NOTHING


def _answer(given: ApprovalAnswer | None) -> ApprovalAnswer | None:
    """Return the answer of an approver. One that waits denies the call, which cannot be suspended."""
    if given is not None and given.wait:
        return ApprovalAnswer(deny="Nobody has approved this call yet, and this coding agent cannot wait.")
    return given


def _stopped(verdict: Verdict) -> str | None:
    """Return why the run must not continue; ``None`` if it may."""
    if verdict.action is HookAction.END:
        return str(verdict.value) or f"Hook {verdict.hook!r} ended the run."
    for signal in verdict.signals:
        return signal.message or f"Hook {signal.hook!r} stopped the run."
    return None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)
