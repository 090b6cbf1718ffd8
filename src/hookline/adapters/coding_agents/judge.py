"""Hookline's hooks as one hook of a coding agent.

:class:`Judge` asks the run that an event belongs to (``_run/hosted.py``), and turns the verdict into an answer. A
prompt of the user and all that follows is one run. What cannot be translated never lets an action through: it is
denied, with the reason.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import msgspec

from ..._base.files import is_below
from ..._base.frozen import plain
from ..._base.text import describe, error_text
from ..._base.workers import in_thread
from ..._kernel.errors import CallRefusedError, HookError
from ..._kernel.payloads import (
    ApprovalAnswer,
    Compaction,
    PromptBuild,
    Question,
    RunStart,
    ToolCallRequest,
    ToolCallResult,
)
from ..._kernel.points import BEFORE_COMPACTION, BEFORE_PROMPT_BUILD, BEFORE_TOOL, ON_RUN_START
from ..._kernel.results import HookAction, Verdict
from ..._kernel.values import ToolCall
from ..._run.hosted import HostedRun
from ...hooks._injection.fence import fenced
from .codecs.base import Codec, cut, with_text
from .events import BEGINNINGS, NOTHING, AgentEvent, Answer, CommandOutput
from .last_call import LastCall
from .patches import PatchError, deletes, folder_of, patches_in
from .rules import COMMAND, Rules
from .sessions import AgentSession, PromptRun, ReadBefore
from .tools import HostTool, ToolMap, tool_for
from .typed_input import reads_typed_commands

log = logging.getLogger("hookline")

USER = "user"
"""Who approved a call if the agent asked its user."""
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
        if event.kind == "session_end" and (ended := self._sessions.pop(event.session, None)) is not None:
            await ended.end("the session has ended")
        if event.kind in ("ignored", "session_end"):
            return codec.write(event, NOTHING)
        call = _Call(self, codec, self._map(codec), event)
        try:
            async with asyncio.timeout(seconds):
                session = await self._session(event.session)
                async with session.lock:
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

    async def close(self) -> None:
        """Leave the open runs to the next process, because this one ends, and write what the hooks have recorded."""
        for session in self._sessions.values():
            await session.suspend()
        self._sessions.clear()
        await in_thread(self.rules.flush)

    def _map(self, codec: Codec) -> ToolMap:
        if codec not in self._maps:
            self._maps[codec] = ToolMap(codec, self._changes)
        return self._maps[codec]

    async def _session(self, ident: str) -> AgentSession:
        session = self._sessions.get(ident)
        if session is None:
            session = self._sessions[ident] = AgentSession(ident, can_go_on=self._codec.can_go_on)
            if (earlier := self._read_before.of(ident)) is not None:
                session.conversation.add_earlier(earlier[0], suspicious=earlier[1])
        self._sessions.move_to_end(ident)
        while len(self._sessions) > MAX_SESSIONS:
            _, forgotten = self._sessions.popitem(last=False)
            await forgotten.end("the session was forgotten")
        return session

    async def _judge(self, session: AgentSession, call: _Call) -> Answer:
        if call.event.kind == "session_start":
            return call.session_start(session)
        run = await session.run(call.event, self.rules.agent(call.codec.platform), self.rules.limits)
        try:
            answer = call.codec.settle(call.event, await call.answer(session, run))
        except Exception:  # the action is refused
            self._note_call(call.event, Answer(deny=""))
            raise
        self._note_call(call.event, answer)
        run.is_new = False
        if answer.stop is not None:
            if call.codec.can_stop and not run.hosted.in_flight:
                await run.hosted.end()
            else:
                run.hosted.go_on()
        return answer

    def _note_call(self, event: AgentEvent, answer: Answer) -> None:
        if event.kind == "before_tool":
            self.last_call = LastCall.of(event.tool, answer)


class _Call:
    """One event, and the points that fire for it."""

    def __init__(self, judge: Judge, codec: Codec, tools: ToolMap, event: AgentEvent) -> None:
        self.codec, self.event = codec, event
        self._tools, self._rules, self._read_before = tools, judge.rules, judge._read_before
        self._sandboxed, self._allow_rewritten = judge._sandboxed, judge._allow_rewritten
        self._known: tuple[ToolCall, HostTool, str] | None = None
        self.session: AgentSession
        self.run: PromptRun
        self.hosted: HostedRun

    async def answer(self, session: AgentSession, run: PromptRun) -> Answer:
        """Answer the event, which is part of a run."""
        self.session, self.run, self.hosted = session, run, run.hosted
        if run.hosted.done and not run.is_new:
            return Answer(deny=run.refusal) if self.event.kind in BEGINNINGS else NOTHING
        match self.event.kind:
            case "prompt":
                return await self._prompt()
            case "before_tool":
                return self._in_their_words(await self._before_tool())
            case "permission":
                return await self._permission()
            case "after_tool":
                return await self._after_tool()
            case "compaction":
                return await self._compaction()
            case _:
                return await self._stop()

    # The session and its prompts.

    def session_start(self, session: AgentSession) -> Answer:
        """Tell the user what has no effect. The hooks are called when the first run of the session begins."""
        session.is_fresh = True
        if unused := self._rules.not_called():
            return Answer(notice=cut(f"Hookline: this has no effect in {self.codec.title}: {'; '.join(unused)}"))
        return NOTHING

    async def _prompt(self) -> Answer:
        if not self.run.is_new and self.run.is_continued_by(self.event):  # no user wrote it
            return NOTHING
        hosted, task = self.hosted, self.event.prompt
        if self.run.is_new:
            changed, context = hosted.task, hosted.system_prompt
        else:
            changed, context = await self._another_prompt(task)
        if hosted.done or hosted.over:
            reply = "" if hosted.result is None else hosted.result.reply
            reason = hosted.over or reply or "The hooks ended the run."
            hosted.go_on()  # with another prompt
            return Answer(deny=reason)
        if changed != task:
            title = self.codec.title
            instead = f"A hook changed the prompt, which {title} cannot do. Send this instead:\n{changed}"
            if self.run.is_new:
                await hosted.refuse(instead, by=COMMAND)
            return Answer(deny=instead)
        self.session.conversation.add_prompt(task)
        return Answer(context=context) if context else NOTHING

    async def _another_prompt(self, task: str) -> tuple[str, str]:
        """Judge a prompt in a run that has begun. Return it as hooks left it, and what they add to it."""
        hosted = self.hosted
        start: RunStart = (await hosted.fire(ON_RUN_START, RunStart(task, hosted.ids))).payload
        if hosted.over:
            return task, ""
        if start.task == task != hosted.task:
            hosted.continue_with(task)
        merged = (await hosted.fire(BEFORE_PROMPT_BUILD, PromptBuild(ids=hosted.ids))).value
        texts = () if merged is None else (merged.prepend_system, merged.override_system, merged.append_system)
        return start.task, "\n\n".join(filter(None, texts))

    # Tool calls.

    async def _before_tool(self) -> Answer:
        call, tool, added = self._translated()
        judged = await self.hosted.judge_call(call, tool=tool, unasked=partial(self._unasked, added), about=self)
        if judged.failure is not None:
            raise judged.failure
        if judged.over:
            return Answer(deny=judged.over, stop=judged.over)
        if (refused := judged.result) is not None:
            if refused.outcome == "answered":
                return Answer(deny=f"A hook answered instead of the tool: {_text(refused.result)}")
            return Answer(deny=refused.text)
        changed = self._changed(judged.request, added)
        if judged.outcome == "asked":
            return Answer(ask="\n".join(question.text for question in judged.questions), changed=changed)
        if changed is not None:
            free = self._allow_rewritten or self.event.asks_nobody or self._is_narrowed(changed)
            return Answer(changed=changed, is_free=free)
        return NOTHING

    def _changed(self, request: ToolCallRequest, added: str) -> dict[str, Any] | None:
        """Return the new input of the agent's tool; ``None`` if hooks did not change the call."""
        call, _, _ = self._translated()
        return None if request.arguments == call.arguments else self._input(request, added)

    def _unasked(self, added: str, request: ToolCallRequest, questions: tuple[Question, ...]) -> str:
        """Return why the user of the agent cannot be asked; empty if the agent asks."""
        text = "\n".join(question.text for question in questions)
        return self.codec.settle(self.event, Answer(ask=text, changed=self._changed(request, added))).deny or ""

    async def objection(self, request: ToolCallRequest) -> str | None:
        """Return why a call must not be made although no guard blocks it; ``None`` if there is no reason."""
        if unknown := self._unknown_call():
            return unknown
        call, tool, added = self._translated()
        if request.name != call.name:
            return f"A hook changed the tool to {request.name}: call that one instead."
        if (hidden := await self._hidden_actions(request, tool)) is not None:
            return hidden
        changed = self._changed(request, added)
        return None if changed is None else self.codec.settle(self.event, Answer(changed=changed)).deny

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

    async def _hidden_actions(self, request: ToolCallRequest, tool: HostTool) -> str | None:
        """Return why a call is denied for what it does beside its arguments; ``None`` if nothing is hidden in it.

        A command may contain patches, whose files guards judge as if they were calls of ``apply_patch``. A program that
        reads commands which the model types later is denied where no hook sees what is typed.
        """
        if tool.kind not in ("shell", "apply_patch"):
            return None
        text = request.arguments.get("patch" if tool.kind == "apply_patch" else "command")
        if not isinstance(text, str):
            return None
        is_command = tool.kind == "shell"
        if is_command and self.codec.hides_input and (program := reads_typed_commands(text)):
            return (
                f"{program} reads commands that are typed later, and {self.codec.title} shows them to no hook. "
                "Give it a script, or the commands with -c."
            )
        try:
            patches = patches_in(text, is_command=is_command)
            folder = folder_of(text, self._cwd) if patches and is_command else self._cwd
        except PatchError as error:
            return f"This patch cannot be judged: {error}."
        if not is_command:
            return None if patches else "This patch cannot be judged: it names no file."
        for patch in patches:
            inner = ToolCallRequest(request.id, "apply_patch", {"patch": patch}, ids=request.ids)
            inner_tool = tool_for("apply_patch", "apply_patch", folder, deletes=deletes(patch))
            verdict = await self.hosted.fire(BEFORE_TOOL, inner, tool=inner_tool)
            if (reason := await self._inner_denial(verdict, inner, inner_tool)) is not None:
                return reason
        return None

    async def _inner_denial(self, verdict: Verdict, inner: ToolCallRequest, tool: HostTool) -> str | None:
        """Return why a patch inside a command is denied; ``None`` if it may be applied as it is."""
        if over := self.hosted.over:
            return over
        if verdict.action is HookAction.BLOCK:
            return str(verdict.value)
        if verdict.answer is not None or verdict.payload.name != inner.name:
            return "A hook decided about the patch in this command. Apply it with the tool for patches."
        if verdict.payload.arguments != inner.arguments:
            return "A hook changed the patch in this command. Apply it with the tool for patches."
        if verdict.asks:
            answer = await self.hosted.ask(inner, *verdict.asks, tool=tool)
            if answer is None or answer.edit is not None:
                return "\n".join(question.text for question in verdict.asks)
            return answer.deny
        return None

    def _in_their_words(self, answer: Answer) -> Answer:
        """Return an answer whose reasons call the tool as the model does. Names without ``_`` may be plain words."""
        ours = self._tools.name_of(self.event.tool)
        if "_" not in ours or ours == self.event.tool:
            return answer
        pattern = rf"\b{re.escape(ours)}\b"

        def worded(text: str | None) -> str | None:
            return text if text is None else re.sub(pattern, lambda _: self.event.tool, text)

        return answer._replace(deny=worded(answer.deny), ask=worded(answer.ask))

    async def _permission(self) -> Answer:
        call, tool, added = self._translated()
        hosted = self.hosted
        request = ToolCallRequest(call.id or hosted.ctx.new_id("call"), call.name, call.arguments, ids=hosted.ids)
        question = Question(f"{self.codec.title} asks for permission.", self.codec.platform)
        answer: ApprovalAnswer | None = await hosted.ask(request, question, tool=tool, about=self)
        if answer is None:
            return NOTHING
        if answer.deny is not None:
            return Answer(deny=answer.deny)
        if answer.edit is None:
            return Answer(allow=True)
        edited = request.replace(arguments=answer.edit)
        judged = await hosted.fire(BEFORE_TOOL, edited, tool=tool, about=self)
        if judged.action is HookAction.BLOCK and judged.hook == COMMAND:
            return Answer(deny=str(judged.value))
        if judged.action is not HookAction.CONT or judged.asks or judged.answer or judged.signals:
            return NOTHING  # another decision than the approver's: leave it to the user
        return Answer(allow=True, changed=self._input(judged.payload, added))

    async def _after_tool(self) -> Answer:
        event, hosted, conversation = self.event, self.hosted, self.session.conversation
        call, tool, _ = self._translated()
        failed = event.error is not None
        settled = await hosted.settle_call(
            call,
            event.result,
            error=event.error,
            seconds=event.seconds or None,
            approved_by=USER,
            tool=tool,
            about=self,
        )
        if settled.failure is not None:
            raise settled.failure
        shown: ToolCallResult = settled.result
        conversation.add_result(shown, tool)
        mark, known = fenced(shown.text), conversation.tools.get(shown.name)
        if mark is not None or known is None or known.untrusted:
            self._read_before.add(event.session, shown.name, suspicious=mark is not None and mark[1])
        answer = Answer(stop=settled.over or None)
        if not failed and shown.error is not None:
            answer = answer._replace(note=shown.error, result=with_text(event.result, shown.error))
        elif not failed and shown.result != event.result:
            answer = answer._replace(result=with_text(event.result, plain(shown.result)))
        elif failed and shown.text != event.error:
            answer = answer._replace(note=f"A hook changed this message to: {shown.text}")
        return answer if settled.retry is None else answer._replace(note=settled.retry)

    def _translated(self) -> tuple[ToolCall, HostTool, str]:
        """Return a call under our names, its tool, and the name of an argument that was added for guards, if any."""
        if self._known is None:
            theirs = self.event.tool
            name, arguments = self._tools.to_hookline(theirs, self.event.input)
            known = self._tools.get(theirs)
            added = ""
            if known is not None and known.searches and not arguments.get("path"):
                added, arguments["path"] = "path", self._cwd
            kind = None if known is None else known.kind
            tool = tool_for(
                kind,
                name,
                self._cwd,
                sandboxed=self._sandboxed,
                deletes=kind == "apply_patch" and deletes(str(arguments.get("patch", ""))),
                takes_glob=known is not None and known.takes_glob,
            )
            self._known = ToolCall(self.event.call_id, name, arguments), tool, added
        return self._known

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

    async def _compaction(self) -> Answer:
        verdict = await self.hosted.fire(BEFORE_COMPACTION, Compaction((), self.event.trigger, self.hosted.ids))
        return Answer(deny=str(verdict.value)) if verdict.action is HookAction.BLOCK else NOTHING

    async def _stop(self) -> Answer:
        reason = await self.hosted.end(self.event.reply)
        if reason is None:
            return NOTHING
        self.run.continuation = reason.strip()
        self.run.keep_going -= 1
        return Answer(go_on=reason)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)
