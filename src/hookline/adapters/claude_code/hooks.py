"""``ClaudeHooks``: the hooks in settings of Claude Code as one hook of Hookline's loop."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from ..._base.files import file_name_for
from ..._base.frozen import fingerprint
from ..._base.own_files import OwnFile, register_own_file
from ..._base.workers import in_thread
from ..._kernel.errors import RegistrationError
from ..._kernel.payloads import ApprovalRequest, Compaction, RunStart, Stopping, ToolCallRequest, ToolCallResult
from ..._kernel.points import (
    AFTER_STEP,
    AFTER_TOOL,
    APPROVAL_REQUESTED,
    BEFORE_COMPACTION,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_RUN_END,
    ON_RUN_START,
    ON_STOP,
)
from ..._kernel.results import HookResult
from ..._kernel.values import Message, Step
from ..._net.egress import Egress, EgressError, post
from ..._net.http_client import FetchError
from ..._net.urls import parse_url
from ..._run.events import log
from ..._toolbox.processes import set_variables
from ...plugins.trust import check_file
from .answers import Answers, HandlerAnswer, failed, not_understood, read_answer, read_reply
from .errors import ClaudeHookError
from .processes import MAX_OUTPUT, Ran, Script, read_variables, shell_argv
from .protocol import BatchCall, ClaudeToolNames, HookInput, encode
from .settings import Handler, OnFailure, project_of, read_settings
from .tools import Translator, response_of, result_of
from .transcript import Transcript

MAX_SESSIONS = 1_000
"""How many conversations are remembered, for ``SessionStart`` and ``SessionEnd``."""
_BY = "a hook of Claude Code"
_STOPPED = "a hook said that the run must not continue"
_POINTS = {
    ON_RUN_START: ("SessionStart", "SessionEnd", "UserPromptSubmit", "SubagentStart"),
    BEFORE_TOOL: ("PreToolUse",),
    APPROVAL_REQUESTED: ("PermissionRequest", "Notification"),
    AFTER_TOOL: ("PostToolUse", "PostToolUseFailure"),
    AFTER_STEP: ("PostToolBatch",),
    ON_STOP: ("Stop", "SubagentStop"),
    ON_RUN_END: ("SessionEnd",),
    BEFORE_COMPACTION: ("PreCompact", "PostCompact", "SessionStart"),
}


class _Judged(msgspec.Struct, frozen=True):
    """What the hooks have judged of a call: its name and its validated arguments, as bytes.

    ``rewriter`` is the handler that changed them, if others have not seen the change yet. ``ask`` is a question that
    has not been asked yet, because a result has only one verb.
    """

    call: bytes
    rewriter: Any = None
    ask: str | None = None


class _HandlersState:
    """What the hooks of one run have to remember."""

    def __init__(self) -> None:
        self.judged: dict[tuple[str, int], _Judged] = {}
        """For each attempt of a call, what the hooks have judged."""
        self.stops = 0
        self.stop: str | None = None
        self.summary: str | None = None
        self.compacting = False
        self.env_file = ""
        """The file for variables of commands, while ``SessionStart`` hooks run."""
        self.late: deque[HandlerAnswer] = deque()
        """Answers of handlers in the background, which come at any time and from other threads."""


class _Shared:
    """The sessions, files and background processes of a :class:`ClaudeHooks`. They end with it."""

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self.lock = threading.Lock()
        self.process = os.getpid()
        self.sessions: dict[str, dict[str, Transcript]] = {}
        self.variables: dict[str, dict[str, str]] = {}
        """For each session, the environment variables that its ``SessionStart`` hooks set for commands."""
        self.scripts: set[Script | None] = set()
        self.cleared = False
        self.is_kept = folder is not None
        self._folder = None if folder is None else Path(folder)

    @property
    def folder(self) -> Path:
        """The folder of the transcripts; created when it is first needed."""
        with self.lock:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="hookline-claude-"))
            elif self.is_kept:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return self._folder

    def transcript(self, session: str, agent: str, translator: Translator) -> Transcript:
        """Return the transcript of a session, or of a subagent in it."""
        folder = self.folder
        self.begin(session)
        with self.lock:
            known = self.sessions[session]
            if agent not in known:
                known[agent] = Transcript(folder, f"agent-{agent}" if agent else session, translator.call)
            return known[agent]

    def begin(self, session: str) -> bool:
        """Return whether a session is new, and remember it."""
        with self.lock:
            if session in self.sessions:
                return False
            while len(self.sessions) >= MAX_SESSIONS:
                oldest = next(iter(self.sessions))
                del self.sessions[oldest]
                self.variables.pop(oldest, None)
            self.sessions[session] = {}
            return True

    def remove(self) -> None:
        """Kill the processes in the background, and delete the temporary files."""
        for script in list(self.scripts):
            if script is not None:
                script.stop()
        if not self.is_kept and self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def _is_path(value: object) -> bool:
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else ""
    return isinstance(text, str) and text != "" and "\0" not in text


SKIPPABLE = ("prompt", "agent", "mcp_tool")
"""Types of handlers that Hookline does not run."""


class ClaudeHooks:
    """Calls the hooks in settings of Claude Code, as they are, at the moments that they were written for.

    A hook is a command that gets JSON on stdin, or a URL that JSON is posted to. It sees tools under Claude Code's
    names (``Bash``, ``Read``, ``Write``, ``Edit``, ``mcp__server__tool``), and what it decides takes effect here: a
    denied call does not run and the model gets the reason, ``updatedInput`` changes the arguments,
    ``additionalContext`` reaches the model. Hookline's own guards judge every call too, after the hooks.

    Example::

        agent = Agent("coder", llm=model, tools=[shell_tool(".")], hooks=[ClaudeHooks(".claude/settings.json")])

    Args:
        settings: a settings file, or the folder of a project: then the settings of the user, of the project
            (``.claude/settings.json``), ``.claude/settings.local.json`` and those of the organisation are merged. Or a
            list of such places.
        folder: the folder in which the commands run; by default, the working folder.
        tools: changes to the map of tools: Claude Code's name of a tool, and the name of yours, or a table with
            ``name`` and ``arguments`` (Claude Code's name of an argument: yours).
        skip: types of handlers to leave out: ``prompt``, ``agent``, ``mcp_tool``. Hookline does not run them, and
            refuses settings that have them otherwise.
        on_failure: what happens if a hook cannot be run, takes too long, or ends in an unexpected way: ``open`` (the
            rule of Claude Code: it is reported, and the run continues), ``block`` (it counts as exit code 2) or
            ``closed`` (the run fails). A hook can have its own, as ``on_failure`` or ``onFailure`` in the settings.
        transcripts: the folder of the transcripts that hooks find at ``transcript_path``; by default, a temporary one.

    Raises:
        RegistrationError: the settings are not valid, or need something that Hookline does not have.
        UntrustedFileError: others could have written a file, or the user has not trusted it.
    """

    points: frozenset[str] = frozenset({*_POINTS, BEFORE_STEP})
    phase: ClassVar = {BEFORE_TOOL: ("rewrite", "guard"), ON_RUN_END: "observe"}
    # Scripts see a call after other rewriters, and a compaction when it has happened.
    priority: ClassVar = {ON_RUN_START: 80, BEFORE_TOOL: -200, BEFORE_STEP: -200}

    def __init__(
        self,
        settings: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = ".",
        *,
        folder: str | os.PathLike[str] | None = None,
        tools: Mapping[str, Any] | None = None,
        skip: Collection[Literal["prompt", "agent", "mcp_tool"]] = (),
        on_failure: OnFailure = "open",
        transcripts: str | os.PathLike[str] | None = None,
    ) -> None:
        places: list[Any] = list(settings) if isinstance(settings, (list, tuple)) else [settings]
        if not places or not all(map(_is_path, places)):
            raise RegistrationError(
                f"ClaudeHooks needs a settings file, the folder of a project, or a list of them, not {settings!r:.80}"
            )
        if not isinstance(skip, (list, tuple, set, frozenset)) or not all(each in SKIPPABLE for each in skip):
            raise RegistrationError(f"skip= must be a list of {', '.join(SKIPPABLE)}, not {skip!r:.80}")
        for name, given in (("folder", folder), ("transcripts", transcripts)):
            if given is not None and not _is_path(given):
                raise RegistrationError(f"{name}= must be the path of a folder, not {given!r:.80}")
        if tools is not None and not isinstance(tools, Mapping):
            raise RegistrationError(f"tools= must be a table of names of tools, not {tools!r:.80}")
        if on_failure not in ("open", "block", "closed"):
            raise RegistrationError(f"on_failure must be open, block or closed, not {on_failure!r:.80}")
        self.folder = os.path.abspath(os.getcwd() if folder is None else folder)
        if not os.path.isdir(self.folder):
            raise RegistrationError(f"the folder {str(folder)!r} does not exist")
        self.project = project_of(places[0])
        read = read_settings(places, project=self.project, skip=skip, on_failure=on_failure)
        self.not_called = read.notes
        """What the settings have that is not called here, each by name."""
        self.handlers = read.handlers
        self._reported: set[tuple[str, str]] = set()
        for note in self.not_called:
            log.warning("%s", note)
        self.files = read.files
        """The settings files."""
        for path in (*read.files, *read.scripts):
            what = "a hook of Claude Code, or the settings that name it"
            register_own_file(self, OwnFile(str(path), what))
            if path.parent.name == ".claude":
                register_own_file(self, OwnFile(str(path.parent), what, is_folder=True))
        self._translator = Translator(ClaudeToolNames(tools), self.folder, tools or ())
        self._by_event: dict[str, tuple[Handler, ...]] = {}
        for handler in self.handlers:
            self._by_event[handler.event] = (*self._by_event.get(handler.event, ()), handler)
        used = {point for point, events in _POINTS.items() if any(event in self._by_event for event in events)}
        used |= {ON_STOP} if any(handler.wakes for handler in self.handlers) else set()
        self.points = frozenset({*used, ON_RUN_START, BEFORE_STEP} if used else ())
        self._shared = _Shared(transcripts)
        endings = self._by_event.get("SessionEnd", ())
        self._finalizer = weakref.finalize(self, _end, self._shared, endings, self.folder)

    def __repr__(self) -> str:
        return f"<ClaudeHooks with {len(self.handlers)} hooks of {', '.join(sorted(self._by_event)) or 'no event'}>"

    def end_session(self, session_id: str, reason: str = "other") -> None:
        """Call the hooks of ``SessionEnd`` for one conversation. This blocks until they have ended.

        Args:
            session_id: the id of the session; one without a run is ignored.
            reason: ``clear``, ``logout``, ``prompt_input_exit`` or ``other``. After ``clear``, the next session starts
                with the source ``clear``.
        """
        self._shared.cleared = reason == "clear"
        self._shared.variables.pop(session_id, None)
        transcripts = self._shared.sessions.pop(session_id, None)
        if transcripts is not None:
            _end_sessions({session_id: transcripts}, self._by_event.get("SessionEnd", ()), self.folder, reason)

    def close(self) -> None:
        """Call the hooks of ``SessionEnd`` for all conversations, and end everything in the background.

        This also happens when the program ends.
        """
        self._finalizer()

    def __enter__(self) -> ClaudeHooks:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def covers(self, tool: Any) -> bool:
        """Whether every call of a tool is judged by a ``PreToolUse`` hook that does not fail open (for ``Strict``)."""
        name, _ = self._translator.call(tool.name, {}, tool)
        return any(
            handler.matcher.matches(name) and handler.condition is None and handler.on_failure != "open"
            for handler in self._by_event.get("PreToolUse", ())
            if not handler.background
        )

    def __call__(
        self, point: str, ctx: Any, payload: Any, *, phase: str = "rewrite"
    ) -> Awaitable[HookResult | None] | None:
        """Call the hooks of the events that belong to a point."""
        own: _HandlersState = ctx.own_state(self, _HandlersState)
        ctx.tree_state.setdefault(id(self), ctx.ids.session_id)  # nested runs belong to the session of the outer one
        if point == BEFORE_TOOL:
            return self._before_tool(ctx, own, payload, may_rewrite=phase == "rewrite")
        if point == AFTER_TOOL:
            return self._after_tool(ctx, payload)
        if point == BEFORE_STEP:
            return self._before_step(ctx, own) if own.late or own.stop or own.compacting else None
        if point == AFTER_STEP:
            return self._after_step(ctx, payload)
        if point == ON_RUN_START:
            return self._run_start(ctx, own, payload)
        if point == ON_STOP:
            return self._on_stop(ctx, own, payload)
        if point == APPROVAL_REQUESTED:
            return self._approval(ctx, own, payload)
        if point == ON_RUN_END:  # the hooks of SessionEnd read the whole transcript
            self._transcript(ctx).append(ctx.state.messages, self._session_of(ctx), self.folder)
            return None
        return self._before_compaction(ctx, own, payload)

    # The events of a run.

    async def _run_start(self, ctx: Any, own: _HandlersState, payload: RunStart) -> HookResult | None:
        if ctx.depth:
            answers = await self._call("SubagentStart", ctx, ctx.agent_name)
            stop = answers.stop
            return self._with_context(ctx, answers) if stop is None else HookResult.end(stop, reason=_STOPPED)
        found: list[Answers] = []
        if self._shared.begin(ctx.ids.session_id):
            source = "resume" if ctx.state.messages else "clear" if self._shared.cleared else "startup"
            self._shared.cleared = False
            found.append(await self._session_start(ctx, own, source))
        elif variables := self._shared.variables.get(ctx.ids.session_id):
            set_variables(ctx, variables)
        found.append(await self._call("UserPromptSubmit", ctx, prompt=payload.task))
        for answers in found:
            if (stop := answers.stop) is not None:
                return HookResult.end(stop, reason=_STOPPED)
        if (why := found[-1].blocked) is not None:
            return HookResult.end(why, reason="the prompt was blocked")
        return self._with_context(ctx, *found)

    async def _session_start(self, ctx: Any, own: _HandlersState, source: str) -> Answers:
        session = self._session_of(ctx)
        file = self._shared.folder / f"{file_name_for(session)}.env"
        own.env_file = str(file)
        answers = await self._call("SessionStart", ctx, source, source=source, model=getattr(ctx.llm, "name", None))
        own.env_file = ""
        if answers and file.is_file() and file.stat().st_size:
            found = await in_thread(read_variables, str(file), self.folder)
            file.unlink(missing_ok=True)
            if isinstance(found, str):
                log.warning("The variables that a SessionStart hook wrote to CLAUDE_ENV_FILE are not used: %s", found)
            else:
                known = self._shared.variables.setdefault(session, {})
                known.update(found)
                set_variables(ctx, known)
        return answers

    async def _before_step(self, ctx: Any, own: _HandlersState) -> HookResult | None:
        """Apply what came too late for an earlier point."""
        if own.stop is not None:
            return HookResult.end(own.stop, reason=_STOPPED)
        found = [self._late(own)]
        if own.compacting:
            own.compacting = False
            summary = _summary(ctx)
            if summary is not None and summary != own.summary:
                found.append(await self._call("PostCompact", ctx, "auto", trigger="auto", compact_summary=summary))
                found.append(await self._session_start(ctx, own, "compact"))
        for answers in found:
            if (stop := answers.stop) is not None:
                return HookResult.end(stop, reason=_STOPPED)
        return self._with_context(ctx, *found)

    def _late(self, own: _HandlersState) -> Answers:
        answers = []
        while own.late:
            answers.append(own.late.popleft())
        return Answers(answers)

    async def _after_step(self, ctx: Any, step: Step) -> HookResult | None:
        if not step.tool_names:
            return None
        calls = _last_batch(ctx.state.messages)
        batch = []
        for call, text in calls:
            name, arguments = self._translator.call(call.name, call.arguments, _tool(ctx, call.name))
            batch.append(BatchCall(name, arguments, call.id, text))
        answers = await self._call("PostToolBatch", ctx, tool_calls=batch)
        stop = answers.stop if answers.stop is not None else answers.blocked
        result = self._with_context(ctx, answers)
        if stop is None:
            return result
        return HookResult.stop(stop, reason="PostToolBatch", state=None if result is None else result.state)

    async def _on_stop(self, ctx: Any, own: _HandlersState, stopping: Stopping) -> HookResult | None:
        if stopping.signals[0].kind not in ("completed", "finish_reason") or own.stop is not None:
            return None  # a limit, an error or a hook stopped the run: it did not finish its work
        last = next((m.content for m in reversed(ctx.state.messages) if m.role == "assistant"), "")
        event = "SubagentStop" if ctx.depth else "Stop"
        given: dict[str, Any] = {"agent_transcript_path": str(self._transcript(ctx).path)} if ctx.depth else {}
        answers = await self._call(
            event,
            ctx,
            ctx.agent_name,
            stop_hook_active=own.stops > 0,
            last_assistant_message=last,
            background_tasks=[],
            session_crons=[],
            **given,
        )
        answers = Answers((*answers.all, *self._late(own).all))
        parts = [answers.blocked and f"{event} hook feedback: {answers.blocked}", answers.context]
        note = "\n".join(filter(None, parts))
        notice = _notice(answers)
        if not note or answers.stop is not None:
            return HookResult.cont(reason=notice) if notice else None
        own.stops += 1
        return HookResult.keep_going(note, reason=notice or f"a {event} hook")

    # The events of a tool call.

    async def _before_tool(
        self, ctx: Any, own: _HandlersState, request: ToolCallRequest, *, may_rewrite: bool
    ) -> HookResult | None:
        tool, key = _tool(ctx, request.name), (request.id, request.attempt)
        judged = None if may_rewrite else own.judged.get(key)
        now = _validated(request, tool) if may_rewrite else fingerprint([request.name, request.arguments])
        unchanged = judged is not None and judged.call == now
        own.judged[key] = _Judged(now)
        if unchanged and judged is not None and judged.rewriter is None:
            return None if judged.ask is None else HookResult.ask(judged.ask)
        name, arguments = self._translator.call(request.name, request.arguments, tool)
        known = (judged.rewriter,) if unchanged and judged is not None else ()
        server = getattr(getattr(tool, "server", None), "name", None)
        answers = await self._call_tool(
            "PreToolUse", ctx, name, arguments, known, tool_use_id=request.id, mcp_server=server
        )
        if (stop := answers.stop) is not None:
            return HookResult.end(stop, reason=_STOPPED)
        told = self._with_context(ctx, answers)
        state, notice = (None, "") if told is None else (told.state, told.reason)
        verb, reason = answers.permission or ("allow", "")
        if verb == "deny":
            return HookResult.block(reason or f"Blocked by {_BY}.", reason=notice or "a PreToolUse hook", state=state)
        if verb == "defer" and len(_open_calls(ctx)) <= 1:
            return HookResult.end(reason or f"The call of {name} is deferred.", reason="tool_deferred")
        question = (reason or f"A hook asks whether {name} may run.") if verb in ("ask", "defer") else None
        if may_rewrite and (updated := answers.updated_input) is not None:
            try:
                new = self._translator.arguments(name, updated[1], request.arguments, tool)
            except ValueError as error:
                broken = Answers([not_understood(updated[0].handler, f"its updatedInput cannot be used: {error}")])
                self._report(broken)
                return HookResult.block(broken.blocked or "", reason="a PreToolUse hook", state=state)
            # The other hooks have not seen the new arguments. They judge them in the guard phase.
            others = len(answers.all) > 1
            rewriter = updated[0].handler.identity if others else None
            request = request.replace(arguments=new)
            own.judged[key] = _Judged(_validated(request, tool), rewriter, question)
            return HookResult.replace(request, reason=notice or reason or "a PreToolUse hook", state=state)
        if judged is not None and question is None:
            question = judged.ask
        return told if question is None else HookResult.ask(question, reason=notice, state=state)

    async def _after_tool(self, ctx: Any, result: ToolCallResult) -> HookResult | None:
        if result.outcome == "blocked":
            return None
        tool = _tool(ctx, result.name)
        name, arguments = self._translator.call(result.name, result.arguments, tool)
        given: dict[str, Any] = {"tool_use_id": result.id, "duration_ms": round(result.duration * 1000)}
        if result.error is not None:
            event = "PostToolUseFailure"
            given |= {"error": result.error, "is_interrupt": result.outcome == "cancelled"}
        else:
            event = "PostToolUse"
            given["tool_response"] = response_of(name, arguments, result.result, result.text)
        answers = await self._call_tool(event, ctx, name, arguments, **given)
        if not answers:
            return None
        if (stop := answers.stop) is not None:
            return HookResult.end(stop, reason=_STOPPED)
        feedback = answers.blocked and f"{event}:{name} hook feedback: {answers.blocked}"
        told = self._with_context(ctx, answers, feedback=feedback or "")
        updated = answers.updated_output
        if updated is msgspec.UNSET or event == "PostToolUseFailure":
            return told
        state, notice = (None, "") if told is None else (told.state, told.reason)
        new = result.replace(result=result_of(name, updated))
        return HookResult.replace(new, reason=notice or f"a {event} hook", state=state)

    async def _approval(self, ctx: Any, own: _HandlersState, asked: ApprovalRequest) -> HookResult | None:
        call = asked.call
        tool = _tool(ctx, call.name)
        name, arguments = self._translator.call(call.name, call.arguments, tool)
        answers = await self._call_tool("PermissionRequest", ctx, name, arguments)
        if (stop := answers.stop) is not None:
            own.stop = stop
            return HookResult.deny(stop, by=_BY)
        # Exit code 2 does not deny here, but a hook that failed and blocks does.
        broken = [answer.reason for answer in answers.all if answer.failure and answer.blocked]
        if broken:
            return HookResult.deny("\n".join(broken), by=_BY)
        decision = answers.decision
        if decision is None:
            text = f"Your permission is needed to use {name}"
            await self._call(
                "Notification", ctx, "permission_prompt", message=text, notification_type="permission_prompt"
            )
            return None
        if decision.behavior == "deny":
            message = decision.message or f"Denied by {_BY}."
            own.stop = message if decision.interrupt else own.stop
            return HookResult.deny(message, by=_BY)
        if decision.updated_input is not None:
            new = self._translator.arguments(name, decision.updated_input, call.arguments, tool)
            return HookResult.edit(new, by=_BY)
        return HookResult.approve(by=_BY)

    async def _before_compaction(self, ctx: Any, own: _HandlersState, payload: Compaction) -> HookResult | None:
        answers = await self._call("PreCompact", ctx, "auto", trigger="auto", custom_instructions="")
        if (stop := answers.stop) is not None:
            own.stop = stop
        why = answers.stop if answers.stop is not None else answers.blocked
        if why is not None:
            return HookResult.block(why, reason="a PreCompact hook")
        own.compacting, own.summary = True, _summary(ctx)
        notice = _notice(answers)
        return HookResult.cont(reason=notice) if notice else None

    # Calling handlers.

    async def _call_tool(
        self,
        event: str,
        ctx: Any,
        name: str,
        arguments: dict[str, Any],
        known: Collection[Any] = (),
        **given: Any,
    ) -> Answers:
        handlers = [
            handler
            for handler in self._by_event.get(event, ())
            if handler.identity not in known
            and (handler.condition is None or handler.condition.matches(name, arguments, self.folder))
        ]
        return await self._call(event, ctx, name, handlers, tool_name=name, tool_input=arguments, **given)

    async def _call(
        self, event: str, ctx: Any, value: str = "", handlers: Iterable[Handler] | None = None, /, **given: Any
    ) -> Answers:
        """Call the handlers of an event whose matcher selects a value, in parallel, each identical one once."""
        of_event = self._by_event.get(event, ()) if handlers is None else handlers
        chosen = {handler.identity: handler for handler in of_event if handler.matcher.matches(value)}
        if not chosen:
            return Answers(())
        transcript = self._transcript(ctx)
        session = self._session_of(ctx)
        transcript.append(ctx.state.messages, session, self.folder)
        main = self._shared.transcript(session, "", self._translator)
        if ctx.depth:
            given |= {"agent_id": ctx.run_id, "agent_type": ctx.agent_name}
        data = HookInput(
            session_id=session,
            hook_event_name=event,
            transcript_path=str(main.path),
            cwd=self.folder,
            prompt_id=ctx.run_id,
            permission_mode="default",
            **given,
        )
        encoded = encode(data)
        own: _HandlersState = ctx.own_state(self, _HandlersState)
        tasks = [
            asyncio.ensure_future(self._call_one(handler, encoded, own))
            for handler in chosen.values()
            if not self._starts_in_background(handler, encoded, own)
        ]
        try:
            answers = await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        found = Answers([answer for answer in answers if answer is not None])
        self._report(found)
        return found

    def _report(self, answers: Answers) -> None:
        """Log failures and the messages for the user, and once for each hook what has no effect."""
        _log_notices(answers)
        for answer in answers.all:
            for name in answer.without_effect:
                if (seen := (answer.handler.where, name)) not in self._reported:
                    self._reported.add(seen)
                    log.warning(
                        "The %s hook %s returned %s, which has no effect in Hookline",
                        answer.handler.event,
                        answer.handler.label,
                        name,
                    )

    def _starts_in_background(self, handler: Handler, data: bytes, own: _HandlersState) -> bool:
        """Start a handler that the run does not wait for; return false for all others."""
        if not handler.background and handler.event != "Notification":
            return False
        if handler.url:
            self._in_background(handler, own, lambda: asyncio.run(_post(handler, data)))
        else:
            script = self._script(handler, data, own)
            self._in_background(handler, own, lambda: read_answer(handler, script.run()), script)
        return True

    async def _call_one(self, handler: Handler, data: bytes, own: _HandlersState) -> HandlerAnswer | None:
        if handler.url:
            return await _post(handler, data)
        script = self._script(handler, data, own)
        try:
            ran = await in_thread(script.run)
        except asyncio.CancelledError:
            script.stop()
            raise
        if ran.went_async:
            self._in_background(handler, own, lambda: read_answer(handler, script.follow()), script)
            return None
        return read_answer(handler, ran)

    def _script(self, handler: Handler, data: bytes, own: _HandlersState) -> Script:
        for file in handler.scripts:
            try:
                check_file(file, file.read_bytes())
            except OSError:
                pass  # running it reports the problem
        env = {**os.environ, **handler.env}
        if data_folder := handler.env.get("CLAUDE_PLUGIN_DATA"):
            os.makedirs(data_folder, mode=0o700, exist_ok=True)
        if handler.event == "SessionStart":
            env["CLAUDE_ENV_FILE"] = own.env_file
        return _script_of(handler, data, self.folder, env)

    def _in_background(
        self,
        handler: Handler,
        own: _HandlersState,
        get_answer: Callable[[], HandlerAnswer],
        script: Script | None = None,
    ) -> None:
        """Get an answer in a thread. Its context, and with ``asyncRewake`` its exit code 2, reach the model later."""
        shared = self._shared

        def follow() -> None:
            try:
                answer = get_answer()
            except ClaudeHookError as error:  # the run has gone on
                answer = HandlerAnswer(handler=handler, failure=str(error))
            if answer.blocked:
                text = f"{handler.event} hook feedback: {answer.reason}" if handler.wakes else answer.context
                answer = msgspec.structs.replace(answer, blocked=False, context=text)
            self._report(Answers([answer]))
            own.late.append(answer)
            shared.scripts.discard(script)

        shared.scripts.add(script)
        threading.Thread(target=follow, name="hookline-claude-hook", daemon=True).start()

    def _transcript(self, ctx: Any) -> Transcript:
        return self._shared.transcript(self._session_of(ctx), ctx.run_id if ctx.depth else "", self._translator)

    def _session_of(self, ctx: Any) -> str:
        """Return the id of the session that a run, or the outermost one around it, belongs to."""
        session: str = ctx.tree_state[id(self)]
        return session

    def _with_context(self, ctx: Any, *found: Answers, feedback: str = "") -> HookResult | None:
        """Return a result that adds the hooks' texts to the transcript, and reports what they say to the user."""
        notice = _notice(*found)
        messages = [Message("user", feedback)] if feedback else []
        for answers in found:
            messages += [Message("user", text) for text in answers.first_messages]
            if text := answers.context:
                event = answers.all[0].handler.event
                messages.append(Message("user", f"{event} hook additional context: {text}"))
        if messages:
            return HookResult.cont(state=ctx.state.with_messages(*messages), reason=notice or "it adds context")
        return HookResult.cont(reason=notice) if notice else None


def _script_of(handler: Handler, data: bytes, folder: str, env: Mapping[str, str]) -> Script:
    argv = [handler.command, *handler.args] if handler.args is not None else shell_argv(handler.command, handler.shell)
    return Script(argv, data, folder, env, handler.timeout)


@lru_cache(64)
def _egress(origin: str) -> Egress:
    """Return the permission to reach the server that the settings name, wherever it is."""
    return Egress([origin], schemes=("http", "https"), private=True)


async def _post(handler: Handler, data: bytes) -> HandlerAnswer:
    """Post the input to the URL of a handler, and return its answer."""
    headers = {"Content-Type": "application/json", "User-Agent": "hookline"}
    headers |= {name: _with_variables(text, handler.env_names) for name, text in handler.headers.items()}
    egress = _egress(parse_url(handler.url).origin)
    try:
        reply = await post(egress, handler.url, data, headers=headers, seconds=handler.timeout, max_bytes=MAX_OUTPUT)
    except (EgressError, FetchError) as error:
        return failed(handler, str(error))
    if reply.cut:
        return failed(handler, f"its response is longer than {MAX_OUTPUT} bytes")
    return read_reply(handler, reply.status, reply.body)


def _notice(*found: Answers) -> str:
    """Return what the hooks say to the user, as the reason of a result."""
    return "; ".join(text for answers in found for text in answers.notices)[:1000]


def _log_notices(answers: Answers) -> None:
    for text in answers.notices:
        log.warning("%s", text)


def _end(shared: _Shared, endings: Sequence[Handler], folder: str) -> None:
    """End all conversations, and everything in the background."""
    if os.getpid() != shared.process:
        return  # a forked process does not own the conversations
    sessions = dict(shared.sessions)
    shared.sessions.clear()
    try:
        _end_sessions(sessions, endings, folder, "other")
    finally:
        shared.remove()


def _end_sessions(
    sessions: Mapping[str, Mapping[str, Transcript]], endings: Sequence[Handler], folder: str, reason: str
) -> None:
    """Call the hooks of ``SessionEnd`` for each conversation, all at once."""
    chosen = {each.identity: each for each in endings if each.matcher.matches(reason)}.values()
    seconds = max((handler.timeout for handler in chosen), default=0.0)  # for all of them together
    end = time.monotonic() + seconds
    running: list[tuple[Handler, Callable[[], HandlerAnswer]]] = []
    for session, transcripts in sessions.items():
        path = str(transcripts[""].path) if "" in transcripts else ""
        data = HookInput(
            session_id=session, hook_event_name="SessionEnd", transcript_path=path, cwd=folder, reason=reason
        )
        encoded = encode(data)
        running += [(handler, _start_ending(handler, encoded, folder, end)) for handler in chosen]
    for handler, get_answer in running:
        try:
            _log_notices(Answers([get_answer()]))
        except (ClaudeHookError, RuntimeError) as error:  # a thread cannot be started while Python exits
            log.warning("The SessionEnd hook %s failed: %s", handler.label, error)


def _start_ending(handler: Handler, data: bytes, folder: str, end: float) -> Callable[[], HandlerAnswer]:
    """Start a handler of ``SessionEnd``; return a function that waits for its answer until ``end``."""
    if handler.url:
        return lambda: _post_until(end, handler, data)
    script = _script_of(handler, data, folder, {**os.environ, **handler.env})
    script.set_limit(end - time.monotonic())
    problem = script.start()
    return lambda: read_answer(handler, script.follow() if problem is None else Ran(problem=problem))


def _post_until(end: float, handler: Handler, data: bytes) -> HandlerAnswer:
    # One after the other: while Python exits, no thread can be started.
    left = end - time.monotonic()
    if left <= 0:
        return failed(handler, "there was no time left for it")
    return asyncio.run(_post(msgspec.structs.replace(handler, timeout=left), data))


def _tool(ctx: Any, name: str) -> Any:
    registry = ctx.tool_registry
    return None if registry is None else registry.get(name)


def _validated(request: ToolCallRequest, tool: Any) -> bytes:
    """Return the fingerprint of a call as guards will see it."""
    checked = None if tool is None else tool.validate(request.arguments)
    arguments = request.arguments if checked is None or isinstance(checked, str) else checked.arguments
    return fingerprint([request.name, arguments])


def _open_calls(ctx: Any) -> Sequence[Any]:
    last = next((message for message in reversed(ctx.state.messages) if message.tool_calls), None)
    return () if last is None else last.tool_calls


def _last_batch(messages: Sequence[Message]) -> list[tuple[Any, str]]:
    """Return the calls of the last step with the text of their results."""
    results = {message.call_id: message.content for message in messages if message.role == "tool"}
    last = next((message for message in reversed(messages) if message.tool_calls), None)
    return [] if last is None else [(call, results.get(call.id, "")) for call in last.tool_calls]


def _summary(ctx: Any) -> str | None:
    """Return the summary that a compaction left in the transcript."""
    from ...hooks.compaction import MARK

    marked = (m.content for m in ctx.state.messages if m.role == "user" and m.content.startswith(MARK))
    text = next(marked, None)
    return None if text is None else text.removeprefix(MARK).strip()


def _with_variables(text: str, names: Collection[str]) -> str:
    """Replace ``$NAME`` and ``${NAME}`` in a header by allowed environment variables, and others by nothing."""

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        return os.environ.get(name, "") if name in names else ""

    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", value, text).replace("\r", "").replace("\n", "")
