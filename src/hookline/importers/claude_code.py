"""Import transcripts of Claude Code: ``~/.claude/projects/*/*.jsonl``.

A transcript is a file of a session, with one JSON object per line. The format is not documented and changes between
versions, so unknown fields and lines are ignored and counted. What a reader must know:

- A reply of the model is several lines with the same message id, one per content block. Each repeats the usage.
- The lines form a tree (``parentUuid``). Rewinding a conversation leaves the old branch in the file. Its calls did
  happen, so they are imported, as runs whose metadata has ``rewound``.
- Resuming a session may copy earlier lines to a new file, with the same ids. Copies are left out.
- A subagent has its own file, ``agent-ID.jsonl``; in old versions its lines are in the file of the session.
- A denied call has an error as its result. New versions name the reason; in old ones its text must be recognised.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from .._kernel.values import Ids, Usage
from ..providers.apis.messages import FINISHES
from ..records.format import Decision, Label
from .logs import Log, Losses, mapping, number, open_log, sequence, text, unix_time
from .runs import Call, ImportedRun, Json

SOURCE = "claude-code"
SUFFIXES = (".jsonl",)
"""The files that are read in folders. Others, such as indexes, are in JSON too."""

NO_REQUEST = ("messages", "tools", "params")
"""The transcript contains neither the system prompt nor the tools, and a run only the messages of its own turn."""
NO_REPLY = ("cost", "duration", "request")
NO_RESULT = ("duration",)
NO_END = ("cost", "messages", "steps", "errors")

PERMISSIONS, HOOKS = "claude_code.permissions", "claude_code.hooks"
"""The names under which decisions of Claude Code are recorded."""

_PROGRAM_LINES = frozenset(
    [
        "agent-name",
        "agent-setting",
        "ai-title",
        "attachment",
        "attribution-snapshot",
        "content-replacement",
        "cost-state",
        "custom-title",
        "file-history-snapshot",
        "last-prompt",
        "mode",
        "permission-mode",
        "pr-link",
        "progress",
        "queue-operation",
        "result",
        "summary",
        "system",
        "tag",
        "task-summary",
        "worktree-state",
    ]
)
_AGENT_FILE = re.compile(r"agent-([\w-]{1,100})")
_COMMAND = re.compile(r"<command-name>\s*(.*?)\s*</command-name>(?:.*?<command-args>(.*?)</command-args>)?", re.S)
_NOT_A_PROMPT = re.compile(
    r"<(?:local-command-|bash-(?:stdout|stderr)|task-notification|system-reminder|user-memory-input)"
    r"|Caveat: The messages below|\S+ hook feedback:|This session is being continued from a previous conversation"
)
_INTERRUPTED = "[Request interrupted by user"
_SAID = re.compile(r"the user said:\s*(.*)", re.S)

_BY_KIND = {"user-rejected": "user", "interrupted": "cancelled", "cancelled": "cancelled", "hook": "hook"}
"""The values of ``toolDenialKind``; all others are rules."""
_BY_TEXT = {
    "user": re.compile(r"The user doesn't want to proceed with this tool use|User rejected tool use"),
    "cancelled": re.compile(
        r"The user doesn't want to take this action right now|\[Request interrupted by user|Cancelled: "
    ),
    "hook": re.compile(r"(?:\w+:)?\S* ?hook (?:error|blocking error|returned)|Hook \S+ denied", re.I),
    "rule": re.compile(
        r"Permission (?:to use|for) .* (?:has been )?denied|Claude requested permissions? to"
        r"|.{0,200} requires approval",
        re.S,
    ),
}
"""The texts of old versions, which have no ``toolDenialKind``."""


def read(paths: Sequence[str], losses: Losses) -> Iterator[ImportedRun]:
    """Yield the runs of transcripts: one for each prompt of a user, with the subagents that it started."""
    importer = _Importer(losses)
    sessions = [path for path in paths if not _AGENT_FILE.fullmatch(Path(path).stem)]
    for path in sessions:
        yield from importer.transcript(path)
    for path in paths:
        if path not in sessions and os.path.realpath(path) not in importer.read_agents:
            losses.leave_out("subagents whose call was not found (imported as runs of their own)")
            yield from importer.transcript(path)


class _Importer:
    """Reads transcripts, each line once."""

    def __init__(self, losses: Losses) -> None:
        self.losses = losses
        self.read_agents: set[str] = set()
        self.turns: set[int] = set()
        """Hashes of the ids of all prompts so far."""

    def transcript(self, path: str) -> Iterator[ImportedRun]:
        """Yield the runs of one file."""
        try:
            with open_log(path, self.losses) as log:
                yield from _Transcript(self, log).runs()
        except OSError as error:
            self.losses.skipped.skip(path, f"the file cannot be read: {error.strerror or error}")

    def agent(self, session: str, agent_id: str) -> list[ImportedRun]:
        """Return the runs in the file of a subagent; an empty list if there is no such file or it was read before."""
        if not re.fullmatch(r"[\w-]{1,100}", agent_id):
            return []
        home, name = Path(session).parent, f"agent-{agent_id}.jsonl"
        for path in (home / Path(session).stem / "subagents" / name, home / name):
            real = os.path.realpath(path)
            if path.is_file() and real not in self.read_agents:
                self.read_agents.add(real)
                return list(self.transcript(str(path)))
        return []


class _Link(msgspec.Struct):
    """The fields of a line that place it in the tree."""

    type: str = ""
    uuid: str | None = None
    parent: str | None = msgspec.field(default=None, name="parentUuid")
    logical_parent: str | None = msgspec.field(default=None, name="logicalParentUuid")
    is_sidechain: bool | None = msgspec.field(default=None, name="isSidechain")
    is_summary: bool | None = msgspec.field(default=None, name="isCompactSummary")


_link = msgspec.json.Decoder(_Link).decode


def _last_branch(log: Log) -> set[int]:
    """Return hashes of the ids of all lines from the first to the last one, without branches that were rewound.

    Only hashes are kept, so that a file of many gigabytes needs little memory.
    """
    before: dict[int, tuple[int, int]] = {}
    last = 0
    for line in log.raw_lines():
        try:
            link = _link(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if not link.uuid or link.is_sidechain:
            continue
        parent = link.parent or link.logical_parent
        # A parent may be missing, because its line is damaged or because a compaction begins a new tree.
        above = hash(parent) if parent else last if link.is_summary else 0
        before[hash(link.uuid)] = above, last
        last = hash(link.uuid)
    branch: set[int] = set()
    while last and last not in branch:
        branch.add(last)
        above, previous = before[last]
        last = above if above in before or not above else previous
    return branch


class _Transcript:
    """Reads one file.

    Args:
        importer: the import that the file belongs to.
        log: the file.
    """

    def __init__(self, importer: _Importer, log: Log) -> None:
        self.importer, self.log, self.losses = importer, log, importer.losses
        self.is_agent = _AGENT_FILE.fullmatch(Path(log.path).stem) is not None
        self.branch: set[int] = set()
        self.main = _Thread(self)
        self.side: dict[str, _Thread] = {}
        self._thread_of: dict[int, str] = {}

    def runs(self) -> Iterator[ImportedRun]:
        """Yield the runs in the order of their ends."""
        self.branch = _last_branch(Log(self.log.path, self.log.file, Losses()))
        for line in self.log.objects():
            kind = text(line.get("type"))
            if kind in ("user", "assistant"):
                if not isinstance(line.get("message"), dict):
                    self.log.skip("the line has no message")
                elif line.get("isSidechain") and not self.is_agent:
                    self._side_thread(line).add(line)
                else:
                    self.main.add(line)
                    yield from self.main.take_finished()
            elif kind in _PROGRAM_LINES:
                self.losses.leave_out("lines about the program itself (titles, progress, snapshots, attachments)")
            elif "sessionId" in line or "uuid" in line:
                self.losses.leave_out("lines of unknown types")
            else:
                self.log.skip("the line is not of a Claude Code transcript")
        self.main.close(last=True)
        yield from self.main.take_finished()
        for thread in self.side.values():
            thread.close(last=True)
            yield from thread.take_finished()

    def _side_thread(self, line: Json) -> _Thread:
        """Return the thread of a subagent's line: by its agent id, else by the root of its branch."""
        uuid, parent = hash(text(line.get("uuid"))), hash(text(line.get("parentUuid")))
        key = text(line.get("agentId")) or self._thread_of.get(parent) or str(uuid)
        self._thread_of[uuid] = key
        return self.side.setdefault(key, _Thread(self))

    def subagents(self, call: Call, agent_id: str) -> list[ImportedRun]:
        """Return the runs that a call started."""
        if agent_id and agent_id in self.side:
            keys = [agent_id]
        else:
            task = call.arguments.get("prompt")
            keys = [key for key, thread in self.side.items() if task and thread.task == task][:1]
        found: list[ImportedRun] = []
        for key in keys:
            thread = self.side.pop(key)
            thread.close(last=True)
            found += thread.take_finished()
        return found or (self.importer.agent(self.log.path, agent_id) if agent_id else [])


class _Thread:
    """The conversation with one agent: the main one, or a subagent."""

    def __init__(self, transcript: _Transcript) -> None:
        self.transcript, self.losses = transcript, transcript.losses
        self.task = ""
        self._run: ImportedRun | None = None
        self._prompt: Json | None = None
        self._reply: list[Json] = []
        self._results: list[tuple[Json, Json]] = []
        self._finished: list[ImportedRun] = []
        self._time = self._asked_at = self._ended_at = 0.0
        self._status = "completed"
        self._is_copy = False
        self._count = 0

    def take_finished(self) -> list[ImportedRun]:
        """Return the runs that are complete, once."""
        finished, self._finished = self._finished, []
        return finished

    def add(self, line: Json) -> None:
        """Add a line of the user or the assistant."""
        before, self._time = self._time, unix_time(line.get("timestamp")) or self._time
        if line["type"] == "assistant":
            self._add_reply(line, before)
            return
        blocks = _blocks(line["message"].get("content"))
        results = [block for block in blocks if block.get("type") == "tool_result"]
        if results:
            self._results += [(block, line) for block in results]
            if not self._reply:
                self._settle()
        said = [block for block in blocks if block.get("type") != "tool_result"]
        if said:
            self._add_message(line, _text(said, self.losses))

    def _add_message(self, line: Json, said: str) -> None:
        if said.startswith(_INTERRUPTED):
            self._close_reply()
            self._status = "cancelled"
        elif line.get("isCompactSummary"):
            self.losses.leave_out("compactions (the summary replaces the messages before it)")
            self._close_reply()
            if self._run is not None:
                self._run.set_messages([{"role": "user", "content": said}])
        elif self._is_prompt(line, said):
            self.close()
            self._start(line, said)
        elif not self._is_copy:
            self._close_reply()
            if self._run is not None:
                self._run.say({"role": "user", "content": said})

    def _is_prompt(self, line: Json, said: str) -> bool:
        origin = text(mapping(line.get("origin")).get("kind")) or "human"
        return not line.get("isMeta") and origin == "human" and not _NOT_A_PROMPT.match(said)

    def _start(self, line: Json, said: str) -> None:
        """Begin a run at a prompt. It counts only when the model replies: many commands never reach it."""
        uuid = text(line.get("uuid"))
        self._is_copy = bool(uuid) and hash(uuid) in self.transcript.importer.turns
        if self._is_copy:
            self.losses.leave_out("prompts that are copies from an earlier file or line, with what followed")
            return
        self.transcript.importer.turns.add(hash(uuid))
        command = _COMMAND.match(said)
        if command:
            said = " ".join(filter(None, command.groups()))
        self._prompt = line
        self.task = self.task or said
        self._run = self._make(line, said)
        self._run.start()
        self._run.say({"role": "user", "content": said})

    def _make(self, line: Json, task: str) -> ImportedRun:
        session = text(line.get("sessionId")) or self.transcript.log.name
        self._count += 1
        is_sidechain = bool(line.get("isSidechain"))
        agent = SOURCE + ("/subagent" if is_sidechain else "")
        uuid = text(line.get("uuid"))
        ids = Ids(
            run_id=uuid or f"{session}-{self._count}",
            task_id=text(line.get("promptId")),
            session_id=session,
            agent=agent,
        )
        run = ImportedRun(ids, time=self._time, task=task)
        run.provider = "anthropic"
        run.metadata = {
            name: line[name] for name in ("cwd", "gitBranch", "version", "permissionMode") if line.get(name)
        }
        if not is_sidechain and uuid and hash(uuid) not in self.transcript.branch:
            run.metadata["rewound"] = True
        self._status = "completed"
        return run

    def _add_reply(self, line: Json, asked_at: float) -> None:
        message = line["message"]
        if self._is_copy:
            return
        if message.get("model") == "<synthetic>":
            self._close_reply()
            failed = bool(line.get("isApiErrorMessage"))
            self._status = "failed" if failed else self._status
            self.losses.leave_out("errors of the API" if failed else "replies that Claude Code itself wrote")
            return
        if self._reply and self._reply[0]["message"].get("id") != message.get("id"):
            self._close_reply()
        if self._run is None:  # the prompt is in another file, or its line is damaged
            self.losses.leave_out("prompts that are not in the file (the run begins with a reply)")
            self._run = self._make(line, "")
            self._run.start()
        if not self._reply:
            self._asked_at = asked_at
        self._reply.append(line)

    def _close_reply(self) -> None:
        """Add the reply whose lines have been collected, and the results that came while it was streamed."""
        lines, self._reply = self._reply, []
        run = self._run
        if lines and run is not None:
            self._prompt, self._status = None, "completed"
            blocks = [block for line in lines for block in _blocks(line["message"].get("content"))]
            self._count_lost(blocks)
            calls = {str(block.get("id")): block for block in blocks if block.get("type") == "tool_use"}
            made = [Call.of(block.get("id"), block.get("name"), block.get("input")) for block in calls.values()]
            messages = [line["message"] for line in lines]
            run.model = text(messages[0].get("model")) or run.model
            began, ended = unix_time(lines[0].get("timestamp")), unix_time(lines[-1].get("timestamp"))
            run.ask(self._asked_at or began, {"model": run.model}, NO_REQUEST)
            reasons = [reason for message in messages if (reason := text(message.get("stop_reason")))]
            fields: Json = {
                "usage": _usage(messages),
                "model": run.model,
                "provider": "anthropic",
                "finish_reason": FINISHES.get(reasons[-1], "other") if reasons else "",
            }
            missing = NO_REPLY if reasons else (*NO_REPLY, "finish_reason")
            run.reply(ended, _text([b for b in blocks if b.get("type") == "text"], self.losses), made, fields, missing)
            for call in made:
                run.call(ended, call)
            self._ended_at = ended
        self._settle()

    def _count_lost(self, blocks: list[Json]) -> None:
        for block in blocks:
            kind = block.get("type")
            if kind in ("thinking", "redacted_thinking"):
                self.losses.leave_out("thinking blocks")
            elif kind not in ("text", "tool_use"):
                self.losses.leave_out("tools that ran at the provider, and other blocks that no hook sees")

    def _settle(self) -> None:
        """Add the results that have been collected."""
        results, self._results = self._results, []
        for block, line in results:
            call = None if self._run is None else self._run.calls.get(text(block.get("tool_use_id")))
            if self._is_copy:
                continue
            if self._run is None or call is None or call.answered:
                self.losses.leave_out("results without their call")
            else:
                self._add_result(self._run, call, block, line)

    def _add_result(self, run: ImportedRun, call: Call, block: Json, line: Json) -> None:
        structured = line.get("toolUseResult")
        agent_id = text(mapping(structured).get("agentId"))
        if agent_id or call.name in ("Task", "Agent"):
            for nested in self.transcript.subagents(call, agent_id):
                _nest(run, call, nested)
        at = unix_time(line.get("timestamp"))
        said = _text(_blocks(block.get("content")), self.losses)
        if "<persisted-output>" in said:
            self.losses.leave_out("results that Claude Code moved to another file (a preview is imported)")
        how = _denial(line, said) if block.get("is_error") or line.get("toolDenialKind") else ""
        outcome = {"": "error" if block.get("is_error") else "ok", "cancelled": "cancelled"}.get(how, "blocked")
        moment = call.moment
        assert moment is not None
        if how == "user":
            words = _SAID.search(said)
            run.decide(moment, Decision(PERMISSIONS, "guard", "ask", value=f"May Claude Code use {call.name}?"))
            run.label(call, Label("denied", call.id, by="user", note=words[1] if words else ""))
            if not line.get("toolDenialKind") and words is None:
                self.losses.leave_out(
                    "denials without a reason, which may also be interruptions (old versions do not say)"
                )
        elif how in ("rule", "hook"):
            run.decide(moment, Decision(PERMISSIONS if how == "rule" else HOOKS, "guard", "block", value=said))
        run.result(at, call, said, outcome=outcome, duration=at - call.time, missing=NO_RESULT)
        self._ended_at = at

    def close(self, *, last: bool = False) -> None:
        """Finish the current run: another one begins, or the file ends."""
        self._close_reply()
        run, self._run = self._run, None
        if run is None:
            return
        if self._prompt is not None:
            self.losses.leave_out("prompts without a reply, and commands of the program")
            self._prompt = None
            return
        self.losses.leave_out("calls without a result", run.unanswered)
        if not (last and run.unanswered and self._status == "completed"):  # otherwise the file ends within the run
            status = "cancelled" if run.unanswered else self._status
            run.finish(self._ended_at, status, missing=NO_END)
        self._finished.append(run)


def _nest(outer: ImportedRun, call: Call, run: ImportedRun) -> None:
    """Put the run of a subagent into the run that started it."""
    kind = text(call.arguments.get("subagent_type"))
    agent = f"{SOURCE}/{kind}" if kind else run.ids.agent
    run.ids = run.ids.replace(parent_run_id=outer.ids.run_id, agent=agent)
    run.call_id = call.id
    outer.items.append(run)


def _denial(line: Json, said: str) -> str:
    """Return who refused a call: ``user``, ``rule`` or ``hook``; ``cancelled`` if it was interrupted; else nothing."""
    if kind := text(line.get("toolDenialKind")):
        return _BY_KIND.get(kind, "hook" if "hook" in kind else "rule")
    said = said.removeprefix("<tool_use_error>")
    return next((who for who, pattern in _BY_TEXT.items() if pattern.match(said)), "")


def _usage(messages: Sequence[Json]) -> Usage:
    """Return the usage of a reply. Its lines repeat it, and only the last one has the final counts."""
    counts = [mapping(message.get("usage")) for message in messages]

    def most(*names: str) -> int:
        return max(sum(number(count.get(name)) for name in names) for count in counts)

    return Usage(
        most("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"),
        most("output_tokens"),
        most("cache_read_input_tokens"),
    )


def _blocks(content: Any) -> list[Json]:
    """Return the blocks of a message, whatever form it has."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return [block if isinstance(block, dict) else {"type": "text", "text": str(block)} for block in sequence(content)]


def _text(blocks: list[Json], losses: Losses) -> str:
    """Return the text of blocks, with a placeholder for all that is not text."""
    parts = []
    for block in blocks:
        kind = text(block.get("type"))
        if kind == "text":
            parts.append(text(block.get("text")))
        else:
            losses.leave_out("images and documents (a placeholder is imported)")
            parts.append(f"[{kind or 'unknown content'}]")
    return "\n".join(parts)
