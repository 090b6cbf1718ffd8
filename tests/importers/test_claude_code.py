"""Transcripts of Claude Code become records, with every trap of the format."""

import json

import pytest

from hookline import BEFORE_TOOL, HookResult, guard
from hookline.backtest import backtest
from hookline.importers import import_logs
from hookline.records import read_runs

from .transcripts import REJECTED, Transcript, said, thought, tool_use


@pytest.fixture
def transcript():
    return Transcript()


def points(run):
    return [moment.point for moment in run.moments]


def test_a_prompt_with_its_calls_is_one_run(transcript, imported, tmp_path):
    transcript.prompt("What is in the folder?")
    transcript.reply("m1", said("I look."), tool_use("c1", "Bash", command="ls"), stop="tool_use")
    transcript.result("c1", "a.txt")
    transcript.reply("m2", said("One file."))
    transcript.prompt("Thank you")
    transcript.reply("m3", said("You are welcome."))
    found = imported("claude-code", transcript.write(tmp_path / "s.jsonl"))
    first, second = found.runs
    assert points(first) == [
        "on_run_start",
        "before_llm",
        "after_llm",
        "before_tool",
        "after_tool",
        "before_llm",
        "after_llm",
        "on_run_end",
    ]
    assert first.info.task == "What is in the folder?"
    assert first.info.ids.session_id == second.info.ids.session_id == "session-1"
    assert first.id != second.id
    assert found.calls() == [("Bash", {"command": "ls"}, "ok")]
    assert (first.end.status, first.end.reply, first.end.steps) == ("completed", "One file.", 2)
    assert [message.content for message in first.moments[5].payload.messages] == [
        "What is in the folder?",
        "I look.",
        "a.txt",
    ]
    assert second.info.task == "Thank you"
    assert found.report.runs == 2
    assert not found.report.skipped


def test_a_reply_over_several_lines_counts_its_usage_once(transcript, imported, tmp_path):
    transcript.prompt("Hi")
    transcript.reply("m1", thought(), said("Hello"), said("there"), usage=(7, 42))
    [run] = imported("claude-code", transcript.write(tmp_path / "s.jsonl")).runs
    reply = next(moment.payload for moment in run.moments if moment.point == "after_llm")
    assert reply.content == "Hello\nthere"
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.cached_tokens) == (1107, 42, 1000)
    assert run.end.usage == reply.usage


def test_a_reply_whose_first_call_ran_while_it_was_streamed_stays_one_reply(transcript, imported, tmp_path):
    transcript.prompt("Two things")
    transcript.reply("m1", tool_use("c1", "Read", file_path="a"), stop=None)
    first = transcript.last
    transcript.result("c1", "text of a")
    transcript.reply("m1", tool_use("c2", "Read", file_path="b"), stop="tool_use", parent=first)
    transcript.result("c2", "text of b")
    transcript.reply("m2", said("Read both."))
    found = imported("claude-code", transcript.write(tmp_path / "s.jsonl"))
    replies = [moment.payload for moment in found.runs[0].moments if moment.point == "after_llm"]
    assert [[call.id for call in reply.tool_calls] for reply in replies] == [["c1", "c2"], []]
    assert [outcome for _, _, outcome in found.calls()] == ["ok", "ok"]
    assert "rewound" not in found.runs[0].info.metadata


def test_a_rewound_branch_is_imported_once_and_marked(transcript, imported, tmp_path):
    transcript.prompt("Begin")
    transcript.reply("m1", said("Begun."))
    fork = transcript.last
    transcript.prompt("Delete everything")
    transcript.reply("m2", tool_use("c1", "Bash", command="rm -r ."), stop="tool_use")
    transcript.result("c1", "gone")
    transcript.reply("m3", said("Deleted."))
    transcript.prompt("Delete nothing", parent=fork)
    transcript.reply("m4", said("Fine."))
    found = imported("claude-code", transcript.write(tmp_path / "s.jsonl"))
    assert [(run.info.task, run.info.metadata.get("rewound", False)) for run in found.runs] == [
        ("Begin", False),
        ("Delete everything", True),
        ("Delete nothing", False),
    ]


def test_lines_copied_to_a_new_file_by_a_resumed_session_are_imported_once(transcript, imported, tmp_path):
    transcript.prompt("Once")
    transcript.reply("m1", tool_use("c1", "Bash", command="ls"), stop="tool_use")
    transcript.result("c1")
    transcript.reply("m2", said("Done."))
    transcript.write(tmp_path / "logs" / "a.jsonl")
    transcript.prompt("Again")
    transcript.reply("m3", said("Done again."))
    for line in transcript.lines:
        line["sessionId"] = "session-2"
    transcript.write(tmp_path / "logs" / "b.jsonl")
    found = imported("claude-code", tmp_path / "logs")
    assert [run.info.task for run in found.runs] == ["Once", "Again"]
    assert found.report.left_out["prompts that are copies from an earlier file or line, with what followed"] == 1


@pytest.mark.parametrize("where", ["agent-a1b2.jsonl", "session-1/subagents/agent-a1b2.jsonl"])
def test_a_subagent_in_its_own_file_is_nested_in_the_run_that_started_it(where, imported, tmp_path):
    main = Transcript()
    main.prompt("Ask a helper")
    main.reply(
        "m1", tool_use("c1", "Agent", prompt="Count files", subagent_type="explorer", description="d"), stop="tool_use"
    )
    main.result("c1", "There are 3.", toolUseResult={"agentId": "a1b2", "status": "completed"})
    main.reply("m2", said("3 files."))
    main.write(tmp_path / "logs" / "session-1.jsonl")
    helper = Transcript(agent="a1b2")
    helper.prompt("Count files")
    helper.reply("s1", tool_use("c9", "Bash", command="ls | wc -l"), stop="tool_use")
    helper.result("c9", "3")
    helper.reply("s2", said("There are 3."))
    helper.write(tmp_path / "logs" / where)
    found = imported("claude-code", tmp_path / "logs")
    [run] = found.runs
    [nested] = run.nested
    assert nested.info.ids.agent == "claude-code/explorer"
    assert nested.info.ids.parent_run_id == run.id
    assert (nested.info.outer, nested.info.call_id) == (0, "c1")
    assert nested.info.task == "Count files"
    positions = [moment.position for each in run.tree() for moment in each.moments]
    assert sorted(positions) == list(range(len(positions)))
    asked = next(m.position for m in run.moments if m.point == "before_tool")
    answered = next(m.position for m in run.moments if m.point == "after_tool")
    assert all(asked < moment.position < answered for moment in nested.moments)


def test_parallel_subagents_in_the_file_of_the_session_are_told_apart(transcript, imported, tmp_path):
    transcript.prompt("Ask two helpers")
    tasks = {"c1": "Task one", "c2": "Task two"}
    transcript.reply("m1", *(tool_use(call, "Task", prompt=task) for call, task in tasks.items()), stop="tool_use")
    main = transcript.last
    ends = {}
    for call, task in tasks.items():
        ends[call] = transcript.prompt(task, parent=None, isSidechain=True)
    for call in tasks:
        transcript.reply(
            f"s{call}", tool_use(f"x{call}", "Bash", command=f"echo {call}"), parent=ends[call], isSidechain=True
        )
        ends[call] = transcript.last
    for call in reversed(tasks):
        ends[call] = transcript.result(f"x{call}", call, parent=ends[call], isSidechain=True)
    for call in tasks:
        transcript.reply(f"t{call}", said(f"end of {call}"), parent=ends[call], isSidechain=True)
    transcript.last = main
    for call in tasks:
        transcript.result(call, "finished")
    transcript.reply("m2", said("Both done."))
    [run] = imported("claude-code", transcript.write(tmp_path / "s.jsonl")).runs
    assert [(nested.info.call_id, nested.info.task, nested.end.reply) for nested in run.nested] == [
        ("c1", "Task one", "end of c1"),
        ("c2", "Task two", "end of c2"),
    ]
    assert [m.payload.arguments["command"] for nested in run.nested for m in nested.moments if m.tool == "Bash"] == [
        "echo c1",
        "echo c1",
        "echo c2",
        "echo c2",
    ]


def test_a_subagent_without_its_session_is_a_run_of_its_own(imported, tmp_path):
    helper = Transcript(agent="b3")
    helper.prompt("Count")
    helper.reply("s1", said("3"))
    found = imported("claude-code", helper.write(tmp_path / "agent-b3.jsonl"))
    assert [run.info.task for run in found.runs] == ["Count"]


def test_the_id_of_a_subagent_cannot_lead_to_another_folder(transcript, imported, tmp_path):
    other = Transcript("elsewhere")
    other.prompt("Private")
    other.reply("m9", said("Secret plans"))
    other.write(tmp_path / "private" / "agent-x.jsonl")
    transcript.prompt("Go")
    transcript.reply("m1", tool_use("c1", "Agent", prompt="p"), stop="tool_use")
    transcript.result("c1", toolUseResult={"agentId": "x/../../private/agent-x"})
    transcript.reply("m2", said("Gone."))
    (tmp_path / "logs" / "agent-x").mkdir(parents=True)
    found = imported("claude-code", transcript.write(tmp_path / "logs" / "s.jsonl"))
    assert [run.nested for run in found.runs] == [[]]


DENIALS = {
    "by the user, new": (REJECTED, {"toolDenialKind": "user-rejected"}, "ask", "denied"),
    "by the user, old": (REJECTED, {"toolUseResult": "User rejected tool use"}, "ask", "denied"),
    "by the user, with words": (f"{REJECTED} the user said:\nuse git rm", {}, "ask", "denied"),
    "by a rule, new": ("Not allowed.", {"toolDenialKind": "permission-rule"}, "block", None),
    "by a rule, old": ("Permission to use Bash with command rm has been denied.", {}, "block", None),
    "without a terminal": (
        "Claude requested permissions to use Bash, but you haven't granted it yet.",
        {},
        "block",
        None,
    ),
    "by a hook": ("PreToolUse:Bash hook error: [guard.py]: no", {}, "block", None),
    "by a hook, wrapped": ("<tool_use_error>Hook PreToolUse:Bash denied this tool</tool_use_error>", {}, "block", None),
    "interrupted": (REJECTED, {"toolDenialKind": "interrupted"}, None, None),
    "failed": ("Exit code 1\nrm: cannot remove", {}, None, None),
}


@pytest.mark.parametrize(("content", "fields", "verb", "label"), DENIALS.values(), ids=DENIALS)
def test_denied_calls_have_a_verdict_and_those_that_people_denied_a_label(
    content, fields, verb, label, transcript, imported, tmp_path
):
    transcript.prompt("Clean up")
    transcript.reply("m1", tool_use("c1", "Bash", command="rm x"), stop="tool_use")
    transcript.result("c1", content, is_error=True, **fields)
    transcript.reply("m2", said("All right."))
    found = imported("claude-code", transcript.write(tmp_path / "s.jsonl"))
    [run] = found.runs
    asked = next(moment for moment in run.moments if moment.point == "before_tool")
    assert (asked.verdict.verb if asked.verdict else None) == verb
    assert [(line.n, line.label.label, line.label.call_id) for line in run.labels] == (
        [(asked.position, label, "c1")] if label else []
    )
    outcome = "cancelled" if "interrupted" in str(fields) else "error" if verb is None else "blocked"
    assert found.calls() == [("Bash", {"command": "rm x"}, outcome)]
    assert {hook.name for hook in run.hooks} == ({asked.verdict.hook} if verb else set())


def test_what_the_user_said_is_the_note_of_the_label(transcript, imported, tmp_path):
    transcript.prompt("Clean up")
    transcript.reply("m1", tool_use("c1", "Bash", command="rm x"), stop="tool_use")
    transcript.result("c1", f"{REJECTED} the user said:\nuse git rm", is_error=True)
    transcript.reply("m2", said("All right."))
    found = imported("claude-code", transcript.write(tmp_path / "s.jsonl"))
    assert found.runs[0].labels[0].label.note == "use git rm"


def test_an_interrupted_run_is_cancelled(transcript, imported, tmp_path):
    transcript.prompt("Wait for me")
    transcript.reply("m1", tool_use("c1", "Bash", command="sleep 100"), stop="tool_use")
    transcript.line("user", {"role": "user", "content": [said("[Request interrupted by user for tool use]")]})
    transcript.prompt("Something else")
    transcript.reply("m2", said("Yes?"))
    found = imported("claude-code", transcript.write(tmp_path / "s.jsonl"))
    assert [(run.info.task, run.end.status) for run in found.runs] == [
        ("Wait for me", "cancelled"),
        ("Something else", "completed"),
    ]
    assert found.report.left_out["calls without a result"] == 1


def test_a_file_that_ends_within_a_run_gives_an_unfinished_run(transcript, imported, tmp_path):
    transcript.prompt("Begin")
    transcript.reply("m1", tool_use("c1", "Bash", command="ls"), stop="tool_use")
    [run] = imported("claude-code", transcript.write(tmp_path / "s.jsonl")).runs
    assert run.end is None
    assert points(run)[-1] == "before_tool"


def test_after_a_compaction_the_summary_replaces_the_messages(transcript, imported, tmp_path):
    transcript.prompt("Long work")
    transcript.reply("m1", tool_use("c1", "Bash", command="ls"), stop="tool_use")
    transcript.result("c1")
    before = transcript.last
    transcript.line("system", parent=None, logicalParentUuid=before, subtype="compact_boundary")
    transcript.prompt("This session is being continued from a previous conversation: work", isCompactSummary=True)
    transcript.reply("m2", said("Done."))
    found = imported("claude-code", transcript.write(tmp_path / "s.jsonl"))
    [run] = found.runs
    assert "rewound" not in run.info.metadata
    requests = [moment.payload for moment in run.moments if moment.point == "before_llm"]
    assert [len(request.messages) for request in requests] == [1, 1]
    assert requests[1].messages[0].content.startswith("This session is being continued")
    assert found.report.left_out["compactions (the summary replaces the messages before it)"] == 1


NOT_PROMPTS = {
    "meta": ("Continue.", {"isMeta": True}),
    "hook feedback": ("Stop hook feedback:\nrun the tests", {}),
    "task notification": ("<task-notification>done</task-notification>", {"origin": {"kind": "task-notification"}}),
    "output of a command": ("<local-command-stdout>ok</local-command-stdout>", {}),
}


@pytest.mark.parametrize(("content", "fields"), NOT_PROMPTS.values(), ids=NOT_PROMPTS)
def test_messages_of_the_program_do_not_begin_a_run(content, fields, transcript, imported, tmp_path):
    transcript.prompt("Work")
    transcript.reply("m1", said("Working."))
    transcript.prompt(content, **fields)
    transcript.reply("m2", said("Finished."))
    [run] = imported("claude-code", transcript.write(tmp_path / "s.jsonl")).runs
    assert run.info.task == "Work"
    assert run.end.reply == "Finished."
    assert run.moments[-3].payload.messages[-1].content == content


def test_a_slash_command_is_a_prompt_only_if_the_model_answers_it(transcript, imported, tmp_path):
    transcript.prompt("<command-name>/clear</command-name>\n<command-message>clear</command-message>")
    transcript.prompt("<command-name>/review</command-name>\n<command-args>main</command-args>")
    transcript.prompt("Review the branch main.", isMeta=True)
    transcript.reply("m1", said("Looks good."))
    found = imported("claude-code", transcript.write(tmp_path / "s.jsonl"))
    assert [run.info.task for run in found.runs] == ["/review main"]
    assert found.report.left_out["prompts without a reply, and commands of the program"] == 1


def test_content_without_a_place_in_a_record_is_counted(transcript, imported, tmp_path):
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    transcript.line("file-history-snapshot")
    transcript.line("progress", data={"type": "hook_progress"})
    transcript.line("a-type-of-tomorrow")
    transcript.line("user", {"role": "user", "content": [said("Look"), image]})
    transcript.reply("m1", thought(), thought(), tool_use("c1", "Read", file_path="a.png"), stop="tool_use")
    transcript.result("c1", [image])
    transcript.reply("m2", {"type": "server_tool_use", "id": "w", "name": "web_search", "input": {}}, said("A cat."))
    transcript.line("assistant", {"id": "x", "model": "<synthetic>", "content": [said("No response requested.")]})
    found = imported("claude-code", transcript.write(tmp_path / "s.jsonl"))
    assert found.report.left_out == {
        "lines about the program itself (titles, progress, snapshots, attachments)": 2,
        "lines of unknown types": 1,
        "images and documents (a placeholder is imported)": 2,
        "thinking blocks": 2,
        "tools that ran at the provider, and other blocks that no hook sees": 1,
        "replies that Claude Code itself wrote": 1,
    }
    assert found.runs[0].info.task == "Look\n[image]"


def test_damaged_lines_are_skipped_and_the_rest_is_imported(transcript, imported, tmp_path):
    transcript.prompt("Work")
    transcript.reply("m1", tool_use("c1", "Bash", command="ls"), stop="tool_use")
    transcript.result("c1")
    transcript.reply("m2", said("Half \ud83d an emoji"))
    lines = [json.dumps(line) for line in transcript.lines]
    lines[1:1] = ["garbage", "[1, 2]", '{"type": "user"}', '{"type": "assistant", "message": "text"}', '{"x": 1}']
    path = tmp_path / "s.jsonl"
    path.write_text("\n".join([*lines, lines[0][:40]]))
    found = imported("claude-code", path)
    assert {(each.reason, each.count) for each in found.report.skipped} == {
        ("the line is not JSON", 1),
        ("the line is not a JSON object", 1),
        ("the line has no message", 2),
        ("the line is not of a Claude Code transcript", 1),
        ("the last line is incomplete", 1),
    }
    assert found.calls() == [("Bash", {"command": "ls"}, "ok")]
    assert found.runs[0].end.reply == "Half ? an emoji"


def test_a_damaged_line_does_not_make_the_lines_before_it_look_rewound(transcript, imported, tmp_path):
    transcript.prompt("First")
    transcript.reply("m1", said("One."), said("The parent of the next prompt."))
    transcript.prompt("Second")
    transcript.reply("m2", said("Two."))
    del transcript.lines[2]
    found = imported("claude-code", transcript.write(tmp_path / "s.jsonl"))
    assert [(run.info.task, run.info.metadata.get("rewound")) for run in found.runs] == [
        ("First", None),
        ("Second", None),
    ]


def test_fields_that_a_transcript_lacks_are_named(transcript, imported, tmp_path):
    transcript.prompt("Work")
    transcript.reply("m1", tool_use("c1", "Bash", command="ls"), stop="tool_use")
    transcript.result("c1")
    transcript.reply("m2", said("Done."))
    [run] = imported("claude-code", transcript.write(tmp_path / "s.jsonl")).runs
    missing = {moment.point: moment.notes.missing for moment in run.moments}
    assert missing["before_tool"] == missing["on_run_start"] == ()
    assert missing["before_llm"] == ("messages", "tools", "params")
    assert missing["after_llm"] == ("cost", "duration", "request")
    assert {moment.notes.inexact for moment in run.moments if moment.notes.missing} == {"partial"}


def test_secrets_in_arguments_are_replaced_and_ids_are_not(transcript, imported, tmp_path):
    secret, ident = "sk-ant-api03-Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5", "toolu_01A9Kp3VtqXyZ4Bc7De8FgHj2Lm5Nn6Pq7Rr8Ss"
    transcript.prompt("Go")
    transcript.reply("m1", tool_use(ident, "Bash", command=f"export ANTHROPIC_API_KEY={secret}"), stop="tool_use")
    transcript.result(ident, f"set to {secret}")
    transcript.reply("m2", said("Done."))
    found = imported("claude-code", transcript.write(tmp_path / "s.jsonl"))
    [run] = found.runs
    assert secret.encode() not in run.file.read_bytes()
    assert {m.payload.id for m in run.moments if m.tool} == {ident}
    assert {m.notes.inexact for m in run.moments if m.tool} == {"redacted"}
    assert run.moments[5].payload.messages[2].call_id == ident


@guard(BEFORE_TOOL, tools="Bash")
def no_rm(ctx, request):
    return HookResult.block("No.") if request.arguments["command"].startswith("rm") else None


@pytest.mark.parametrize(("content", "fields", "verb", "label"), DENIALS.values(), ids=DENIALS)
def test_a_backtest_plays_the_decisions_of_claude_code_and_counts_the_labels(
    content, fields, verb, label, transcript, imported, tmp_path
):
    transcript.prompt("Clean up")
    transcript.reply("m1", tool_use("c1", "Bash", command="rm x"), stop="tool_use")
    transcript.result("c1", content, is_error=True, **fields)
    transcript.reply("m2", said("All right."))
    found = imported("claude-code", transcript.write(tmp_path / "s.jsonl"))
    report = backtest([no_rm], [found.report.path])
    assert not report.failures
    assert report.total("newly_blocked").exact == (verb != "block")
    assert report.labels.recall == (1.0 if label else None)
    other = backtest([no_rm], [found.report.path], without=["claude_code.permissions", "claude_code.hooks"])
    assert other.total("same").total + other.total("newly_blocked").total + other.total("worded_differently").total == 1


def test_in_a_folder_only_transcripts_are_read(transcript, imported, tmp_path):
    transcript.prompt("Hi")
    transcript.reply("m1", said("Hello."))
    transcript.write(tmp_path / "project" / "session-1.jsonl")
    (tmp_path / "project" / "sessions-index.json").write_text('{"version": 1, "entries": []}')
    found = imported("claude-code", tmp_path / "project")
    assert len(found.runs) == 1
    assert not found.report.skipped


def test_the_new_runs_of_a_session_are_imported_with_their_hooks(tmp_path):
    transcript = Transcript()
    for number in (1, 2):
        transcript.prompt(f"Task {number}")
        transcript.reply(f"m{number}", tool_use(f"c{number}", "Bash", command="rm x"), stop="tool_use")
        transcript.result(f"c{number}", REJECTED, is_error=True, toolDenialKind="user-rejected")
        transcript.reply(f"n{number}", said("I leave it."))
        transcript.write(tmp_path / "log" / "session.jsonl")
        report = import_logs("claude-code", [tmp_path / "log"], tmp_path / "records")
        [run] = read_runs(report.path)
        assert (run.info.task, len(run.hooks)) == (f"Task {number}", 1)
    assert report.left_out["runs that were imported before"] == 1
