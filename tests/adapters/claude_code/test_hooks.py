"""The decisions of hooks in a run: precedence, rewrites, context, sessions, subagents, the background, HTTP."""

import json
import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from hookline import (
    AFTER_TOOL,
    APPROVAL_REQUESTED,
    BEFORE_TOOL,
    Agent,
    HookResult,
    Limits,
    RegistrationError,
    ScriptedModel,
    Session,
    call,
    guard,
    hook,
    tool,
)
from hookline.adapters.claude_code.answers import Answers, read_answer
from hookline.adapters.claude_code.matching import Matcher
from hookline.adapters.claude_code.processes import Ran
from hookline.adapters.claude_code.settings import Handler
from hookline.hooks import Compactor, ContextCompactionHook
from hookline.teams import Team
from hookline.tools import shell_tool

from ...cases import each_case
from ...waiting import block_until

pytestmark = pytest.mark.slow  # real processes and servers


def say(**output):
    """Return a hook in Python that prints JSON."""
    return f"print(json.dumps({output!r}))"


def decide(decision, reason="", **more):
    """Return a hook in Python that decides about a call."""
    specific = {"hookEventName": "PreToolUse", "permissionDecision": decision, "permissionDecisionReason": reason}
    return say(hookSpecificOutput={**specific, **more})


def texts(model):
    return [message.content for message in model.requests[-1].messages]


def answer(event="PreToolUse", code=0, stdout="", stderr="", **options):
    handler = Handler(event=event, matcher=Matcher(), command="hook", timeout=1, where="settings", **options)
    return read_answer(handler, Ran(code, stdout, stderr))


# Exit codes and JSON.


def test_exit_code_2_blocks_whatever_the_json_says():
    allow = '{"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "allow"}}'
    found = answer(code=2, stdout=allow, stderr="No.")
    assert (found.blocked, found.reason, found.permission) == (True, "No.", "deny")


@pytest.mark.parametrize(
    ("stdout", "stderr", "reason"),
    [
        ('{"reason": "by JSON"}', "by stderr", "by JSON"),
        ("", "by stderr\n", "by stderr"),
        ("plain text", "", "Blocked by the hook hook."),
    ],
)
def test_the_reason_of_exit_code_2_is_that_of_the_json_or_else_stderr(stdout, stderr, reason):
    assert answer(code=2, stdout=stdout, stderr=stderr).reason == reason


HOOKIFY = {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "deny"}}
"""The denial of Anthropic's plugin hookify, which says why only in ``systemMessage``."""


@pytest.mark.parametrize("decision", ["deny", "ask", "defer"])
def test_a_decision_without_a_reason_has_the_message_for_the_user_as_its_reason(decision):
    output = {"hookSpecificOutput": {**HOOKIFY["hookSpecificOutput"], "permissionDecision": decision}}
    assert answer(stdout=json.dumps({**output, "systemMessage": "Use uv."})).reason == "Use uv."
    own = {**output["hookSpecificOutput"], "permissionDecisionReason": "No."}
    assert answer(stdout=json.dumps({"hookSpecificOutput": own, "systemMessage": "Use uv."})).reason == "No."


def test_a_block_without_a_reason_has_the_message_for_the_user_as_its_reason():
    text = json.dumps({"decision": "block", "systemMessage": "Use uv."})
    assert answer(stdout=text).reason == "Use uv."
    assert answer(code=2, stdout=text).reason == "Use uv."
    assert answer(code=2, stdout=text, stderr="by stderr").reason == "by stderr"


def test_a_message_for_the_user_is_no_reason_of_a_permission():
    allow = {"hookSpecificOutput": {**HOOKIFY["hookSpecificOutput"], "permissionDecision": "allow"}}
    assert answer(stdout=json.dumps({**allow, "systemMessage": "Use uv."})).reason == ""
    assert answer(stdout='{"systemMessage": "Use uv."}').reason == ""


def test_the_model_reads_why_hookify_denied_a_call_or_a_result(project):
    message = "**[no-pip]**\nUse uv."
    event = "'hookEventName': data['hook_event_name'], 'permissionDecision': 'deny'"
    project.python(
        "PreToolUse", f"print(json.dumps({{'hookSpecificOutput': {{{event}}}, 'systemMessage': {message!r}}}))"
    )
    result = project.run([call("shell", command="touch made"), "Ok."])
    assert (result.steps[0].outcomes, texts(project.model)[-1]) == (("blocked",), message)
    assert not (project.folder / "made").exists()
    project.settings["hooks"]["PostToolUse"] = project.settings["hooks"].pop("PreToolUse")
    project.run([call("shell", command="echo secret"), "Ok."])
    assert "Use uv." in texts(project.model)[-1]
    assert "secret" not in str(texts(project.model)[2:])


def test_json_decides_with_another_exit_code_too():
    assert answer(code=1, stdout='{"decision": "block", "reason": "No."}').blocked


@pytest.mark.parametrize("event", ["SessionStart", "UserPromptSubmit", "PreToolUse", "Stop"])
def test_plain_text_is_context_at_two_events_only(event):
    expected = "plain" if event in ("SessionStart", "UserPromptSubmit") else ""
    assert answer(event, stdout="plain\n").context == expected


def test_texts_are_cut_at_10_000_characters():
    long = "x" * 20_000
    assert len(answer(code=2, stderr=long).reason) == 10_000
    context = json.dumps({"hookSpecificOutput": {"hookEventName": "Stop", "additionalContext": long}})
    assert len(answer("Stop", stdout=context).context) == 10_000
    assert len(answer("UserPromptSubmit", stdout=long).context) == 10_000
    assert len(Answers([answer(stdout=json.dumps({"continue": False, "stopReason": long}))]).stop) == 10_000


def test_the_older_way_to_decide_still_works():
    assert answer(stdout='{"decision": "approve"}').permission == "allow"
    assert answer(stdout='{"decision": "block", "reason": "No."}').permission == "deny"


def test_unknown_fields_are_ignored():
    assert answer(stdout='{"decision": "block", "reason": "No.", "tomorrow": {"new": 1}}').reason == "No."
    assert answer(stdout='{"tomorrow": {"decision": "block"}, "reason": "Fine."}').permission is None


PRE = {"hookEventName": "PreToolUse"}


@each_case(
    "output",
    [
        {"decision": "ask"},
        {"decision": "deny", "reason": "No."},
        {"decision": "Block"},
        {"decision": ["block"]},
        {"decision": {"behavior": "deny"}},
        {"decision": True},
        {"decison": "block"},
        {"Decision": "block"},
        {"continue": "false"},
        {"Continue": False},
        {"permissionDecision": "deny"},
        {"permission_decision": "deny"},
        {"permission": "deny"},
        {"permission": False},
        {"ok": False, "reason": "No."},
        {"allowed": False},
        {"block": True},
        {"behavior": "deny"},
        {"cancel": True},
        {"updatedInput": {"command": "true"}},
        {"hook_specific_output": PRE | {"permissionDecision": "deny"}},
        {"hookSpecificOutput": "deny"},
        {"hookSpecificOutput": [PRE | {"permissionDecision": "deny"}]},
        {"hookSpecificOutput": {"permissionDecision": "deny"}},
        {"hookSpecificOutput": {"hookEventName": "PostToolUse", "permissionDecision": "deny"}},
        {"hookSpecificOutput": PRE | {"permissionDecision": "block"}},
        {"hookSpecificOutput": PRE | {"permissionDecision": "DENY"}},
        {"hookSpecificOutput": PRE | {"permissionDecision": False}},
        {"hookSpecificOutput": PRE | {"permissionDecision": {"behavior": "deny"}}},
        {"hookSpecificOutput": PRE | {"permission_decision": "deny"}},
        {"hookSpecificOutput": PRE | {"permissionDecison": "deny"}},
        {"hookSpecificOutput": PRE | {"behavior": "deny"}},
        {"hookSpecificOutput": PRE | {"decision": "deny"}},
        {"hookSpecificOutput": PRE | {"decision": {"behavior": "deny"}}},
        {"hookSpecificOutput": PRE | {"updatedInput": "true"}},
        {"hookSpecificOutput": PRE | {"updated_input": {"command": "true"}}},
        [{"decision": "block"}],
        [PRE | {"permissionDecision": "deny"}],
    ],
)
def test_a_decision_about_a_call_that_is_not_understood_is_a_denial(output):
    for code in (0, 1):
        found = answer(code=code, stdout=json.dumps(output))
        assert found.permission == "deny"
        assert found.failure


@each_case(
    ("code", "stdout"),
    [
        (0, ""),
        (0, "plain text"),
        (0, '"deny"'),
        (0, "[1, 2]"),
        (0, "[info] all is well"),
        (0, "log line\n{}"),
        (0, "{}"),
        (0, '{"decision": null, "reason": "all is well"}'),
        (0, '{"suppressOutput": true}'),
        (0, '{"continue": true}'),
        (1, ""),
        (1, "plain text"),
        (1, "{ not JSON"),
        (3, "{}"),
    ],
)
def test_text_and_other_exit_codes_decide_nothing_as_in_claude_code(code, stdout):
    assert answer(code=code, stdout=stdout).permission is None


@each_case(
    "output",
    [
        {"permissionDecision": "allow"},
        {"permission": "allow"},
        {"cancel": False},
        {"ok": True},
        {"hookSpecificOutput": PRE | {"decision": {"behavior": "allow"}}},
    ],
)
def test_a_permission_in_a_field_that_is_not_read_is_ignored(output):
    assert answer(stdout=json.dumps(output)).permission is None


def test_a_command_does_not_run_if_its_hook_asks_in_a_field_that_cannot_ask(project):
    project.python("PreToolUse", say(decision="ask", reason="Push?"), "Bash")
    result = project.run([call("shell", command="touch pushed"), "Ok."])
    assert result.steps[0].outcomes == ("blocked",)
    assert not (project.folder / "pushed").exists()


def test_a_prompt_is_blocked_if_the_answer_about_it_is_not_understood(project):
    project.python("UserPromptSubmit", say(decision="deny"))
    result = project.run(["Never."])
    assert result.status == "ended"
    assert project.model.requests == []


@pytest.mark.parametrize(
    "output",
    [
        {"decision": "block"},
        {"decision": "deny"},
        {"hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": {"behavior": "ask"}}},
        {"hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": {"message": "No."}}},
        {"hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": "deny"}},
        {"hookSpecificOutput": {"hookEventName": "PermissionRequest", "behavior": "deny"}},
        {"hookSpecificOutput": {"hookEventName": "PermissionRequest", "permissionDecision": "deny"}},
        {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "deny"}},
    ],
    ids=range(8),
)
def test_a_permission_request_is_denied_if_the_answer_about_it_is_not_understood(project, output):
    project.python("PermissionRequest", say(**output)).python("PreToolUse", decide("ask"))
    approve = hook(APPROVAL_REQUESTED, priority=-1)(lambda ctx, request: HookResult.approve())
    assert project.run([call("list_files"), "Ok."], approve).steps[0].outcomes == ("blocked",)


def test_a_new_input_of_an_approved_call_that_cannot_be_used_keeps_it_from_running(project):
    decision = {"behavior": "allow", "updatedInput": {"file_path": "b", "path": "c", "content": "b"}}
    project.python(
        "PermissionRequest", say(hookSpecificOutput={"hookEventName": "PermissionRequest", "decision": decision})
    ).python("PreToolUse", decide("ask"))
    approve = hook(APPROVAL_REQUESTED, priority=-1)(lambda ctx, request: HookResult.approve())
    result = project.run([call("write_file", path="a", content="a"), "Ok."], approve)
    assert result.steps[0].outcomes == ("blocked",)
    assert not (project.folder / "a").exists()


def test_a_result_is_withheld_if_the_answer_about_it_is_not_understood(project):
    project.write("notes.txt", "the secret")
    project.python("PostToolUse", say(hookSpecificOutput={"updatedToolOutput": "[hidden]"}))
    result = project.run([call("read_file", path="notes.txt"), "Ok."])
    assert "the secret" not in json.dumps(texts(project.model))
    assert "PostToolUse hook" in result.messages[2].content


def test_a_run_stops_if_the_answer_about_a_batch_is_not_understood(project):
    project.python("PostToolBatch", say(decision="stop"))
    assert project.run([call("list_files"), "Never."]).status == "stopped"


# Precedence.


@pytest.mark.parametrize(
    ("decisions", "outcome"),
    [
        (("allow", "deny"), "blocked"),
        (("deny", "defer"), "blocked"),
        (("ask", "deny"), "blocked"),
        (("defer", "ask"), "deferred"),
        (("defer", "allow"), "deferred"),
        (("allow", "ask"), "asked"),
        (("allow", "allow"), "ran"),
    ],
)
def test_deny_counts_more_than_defer_ask_and_allow(project, decisions, outcome):
    for number, decision in enumerate(decisions):
        project.python("PreToolUse", decide(decision, f"reason {number}"))
    asked = []

    @hook(APPROVAL_REQUESTED)
    def person(ctx, request):
        asked.append(request.questions[0].text)
        return HookResult.approve()

    result = project.run([call("write_file", path="a", content="a"), "Ok."], person)
    found = "asked" if asked else "deferred" if result.hook_ended == "tool_deferred" else result.steps[0].outcomes[0]
    assert found == {"ran": "ok"}.get(outcome, outcome)
    assert (project.folder / "a").exists() == (outcome in ("asked", "ran"))


def test_a_deferred_call_among_others_asks_a_person(project):
    project.python("PreToolUse", decide("defer", "Later?"), "Write")
    result = project.run([[call("write_file", path="a", content="a"), call("list_files")], "Ok."])
    assert result.steps[0].outcomes == ("blocked", "ok")  # nobody answered
    assert not (project.folder / "a").exists()


def test_a_permission_of_a_hook_does_not_replace_that_of_another_guard(project):
    project.python("PreToolUse", decide("allow"))

    @guard(BEFORE_TOOL)
    def ask(ctx, request):
        return HookResult.ask("May it?")

    assert project.run([call("list_files"), "Ok."], ask).steps[0].outcomes == ("blocked",)


@pytest.mark.parametrize(
    ("event", "turns", "status"),
    [
        ("UserPromptSubmit", ["Never."], "ended"),
        ("SessionStart", ["Never."], "ended"),
        ("PreToolUse", [call("list_files"), "Never."], "ended"),
        ("PostToolUse", [call("list_files"), "Never."], "ended"),
        ("PostToolUseFailure", [call("read_file", path="none"), "Never."], "ended"),
        ("PostToolBatch", [call("list_files"), "Never."], "stopped"),
    ],
)
def test_continue_false_stops_the_run_with_the_reason(project, event, turns, status):
    project.python(event, say(**{"continue": False, "stopReason": "Enough."}))
    project.python(event, say(decision="block", reason="unused"))
    result = project.run(turns)
    assert result.status == status
    assert "Enough." in (result.reply, result.stop.message if result.stop else "")
    assert len(project.model.requests) == len(turns) - 1


def test_continue_false_at_stop_counts_more_than_a_block(project):
    project.python("Stop", say(decision="block", reason="Go on.")).python("Stop", say(**{"continue": False}))
    assert project.run(["Done.", "Never."]).reply == "Done."


# Rewrites.


def test_a_guard_of_hookline_judges_the_rewritten_call(project):
    project.python("PreToolUse", decide("allow", updatedInput={"file_path": "b.txt", "content": "new"}), "Write")
    seen = []

    @guard(BEFORE_TOOL, tools="write_file")
    def watch(ctx, request):
        seen.append(dict(request.arguments))

    project.run([call("write_file", path="a.txt", content="old"), "Ok."], watch)
    assert seen == [{"path": "b.txt", "content": "new"}]
    assert (project.folder / "b.txt").read_text() == "new"


def test_updated_input_is_mapped_back_and_an_unchanged_path_stays_as_it_was(project):
    project.python("PreToolUse", "d = {**data['tool_input'], 'limit': 1}\n" + decide("allow").replace(
        "'permissionDecisionReason': ''", "'updatedInput': d"), "Read")  # fmt: skip
    project.write("notes/a.txt", "one\ntwo\n")
    seen = []

    @guard(BEFORE_TOOL)
    def watch(ctx, request):
        seen.append(dict(request.arguments))

    result = project.run([call("read_file", path="notes/a.txt"), "Ok."], watch)
    assert seen == [{"path": "notes/a.txt", "start_line": 1, "max_lines": 1}]
    assert result.messages[2].content.startswith("one\n[lines 1 to 1 of 2")


def test_arguments_that_only_claude_codes_tool_has_are_left_out(project, caplog):
    updated = {"command": "echo two", "description": "Say two", "run_in_background": False}
    project.python("PreToolUse", decide("allow", updatedInput=updated), "Bash")
    assert project.run([call("shell", command="echo one"), "Ok."]).messages[2].content == "two\n[exit code 0]"
    assert "description, run_in_background" in caplog.text


def test_an_absolute_path_inside_the_folder_becomes_relative(project):
    project.python("PreToolUse", decide("allow", updatedInput={"file_path": f"{project.folder}/b", "content": "b"}))
    project.run([call("write_file", path="a", content="a"), "Ok."])
    assert (project.folder / "b").read_text() == "b"


def test_the_other_hooks_judge_the_input_that_a_hook_has_rewritten(project):
    project.python("PreToolUse", decide("allow", updatedInput={"command": "touch bad"}), "Bash")
    deny = "'bad' in data['tool_input']['command'] and (print('bad', file=sys.stderr), sys.exit(2))"
    project.python("PreToolUse", deny, "Bash")
    result = project.run([call("shell", command="touch good"), "Ok."])
    assert result.steps[0].outcomes == ("blocked",)
    assert os.listdir(project.folder) == [".claude"]


def test_the_last_of_several_rewrites_counts(project):
    for name in ("one", "two"):
        project.python("PreToolUse", decide("allow", updatedInput={"command": f"echo {name}"}), "Bash")
    assert project.run([call("shell", command="echo x"), "Ok."]).messages[2].content.startswith("two")


def test_a_call_that_a_hook_rewrites_and_asks_about_is_asked_about_as_rewritten(project):
    code = "if data['tool_input']['command'] == 'echo one':\n    " + decide(
        "ask", "Sure?", updatedInput={"command": "echo two"}
    )
    project.python("PreToolUse", code, "Bash")
    asked = []

    @hook(APPROVAL_REQUESTED)
    def person(ctx, request):
        asked.append((request.questions[0].text, request.call.arguments["command"]))
        return HookResult.approve()

    result = project.run([call("shell", command="echo one"), "Ok."], person)
    assert asked == [("Sure?", "echo two")]
    assert result.messages[2].content.startswith("two")


def test_hooks_judge_a_call_again_that_an_approver_has_edited(project):
    project.python("PreToolUse", "'bad' in data['tool_input']['content'] and sys.exit(2)", "Write")

    @guard(BEFORE_TOOL)
    def ask(ctx, request):
        return HookResult.ask("May it?")

    @hook(APPROVAL_REQUESTED)
    def edit(ctx, request):
        return HookResult.edit({"path": "a", "content": "bad"})

    result = project.run([call("write_file", path="a", content="good"), "Ok."], ask, edit)
    assert result.steps[0].outcomes == ("blocked",)
    assert not (project.folder / "a").exists()


@pytest.mark.parametrize("changed", [{"arguments": {"command": "touch bad"}}, {"name": "terminal"}])
def test_hooks_judge_a_call_again_that_a_later_rewriter_has_changed(project, changed):
    project.add("PreToolUse", 'jq -e \'.tool_name == "Bash" and .tool_input.command == "touch good"\' || exit 2')

    @hook(BEFORE_TOOL, priority=-300)
    def rewrite(ctx, request):
        return request.replace(**changed)

    @tool
    def terminal(command: str) -> str:
        """Run a command."""
        return project.write("bad", command).name

    tools = [terminal, shell_tool(project.folder, sandbox="off")]
    result = project.run([call("shell", command="touch good"), "Ok."], rewrite, tools=tools)
    assert result.steps[0].outcomes == ("blocked",)
    assert not (project.folder / "bad").exists()


def test_a_call_that_nobody_changes_is_judged_once(project):
    project.add("PreToolUse", "log-event.py")
    project.write("a.txt", "a")
    project.run([call("read_file", path="a.txt"), "Ok."])  # validation adds start_line and max_lines
    assert len(project.log()) == 1


def test_hooks_see_a_call_after_other_rewriters(project):
    project.add("PreToolUse", "log-event.py")

    @hook(BEFORE_TOOL)
    def rewrite(ctx, request):
        return request.replace(arguments={"path": "."})

    project.run([call("list_files", path="elsewhere"), "Ok."], rewrite)
    (line,) = project.log()
    assert line["tool_input"] == {"path": "."}


def test_a_permission_request_hook_can_change_the_input_of_a_call(project):
    decision = {"behavior": "allow", "updatedInput": {"file_path": "b", "content": "b"}}
    project.python(
        "PermissionRequest", say(hookSpecificOutput={"hookEventName": "PermissionRequest", "decision": decision})
    )
    project.python("PreToolUse", decide("ask"))
    project.run([call("write_file", path="a", content="a"), "Ok."])
    assert not (project.folder / "a").exists()
    assert (project.folder / "b").read_text() == "b"


def test_a_permission_request_hook_can_deny_and_interrupt(project):
    decision = {"behavior": "deny", "message": "Stop here.", "interrupt": True}
    project.python(
        "PermissionRequest", say(hookSpecificOutput={"hookEventName": "PermissionRequest", "decision": decision})
    )
    project.python("PreToolUse", decide("ask"))
    result = project.run([call("list_files"), "Never."])
    assert (result.status, result.reply) == ("ended", "Stop here.")
    assert result.steps[0].outcomes == ("blocked",)


def test_exit_code_2_is_not_a_denial_of_a_permission_request(project):
    project.add("PermissionRequest", "exit 2").python("PreToolUse", decide("ask"))
    approve = hook(APPROVAL_REQUESTED, priority=-1)(lambda ctx, request: HookResult.approve())
    assert project.run([call("list_files"), "Ok."], approve).steps[0].outcomes == ("ok",)


# Results, context and stopping.


def test_updated_tool_output_is_seen_by_the_model_and_by_later_hooks(project):
    project.python(
        "PostToolUse", say(hookSpecificOutput={"hookEventName": "PostToolUse", "updatedToolOutput": {"n": 1}})
    )
    seen = []

    @hook(AFTER_TOOL, phase="guard")
    def watch(ctx, result):
        seen.append(result.text)

    assert project.run([call("list_files"), "Ok."], watch).messages[2].content == '{"n":1}'
    assert seen == ['{"n":1}']


def test_context_of_calls_follows_their_results(project):
    project.python("PreToolUse", say(hookSpecificOutput={"hookEventName": "PreToolUse", "additionalContext": "before"}))
    project.python(
        "PostToolUse", say(hookSpecificOutput={"hookEventName": "PostToolUse", "additionalContext": "after"})
    )
    result = project.run([[call("list_files"), call("list_files", path=".claude")], "Ok."])
    roles = [message.role for message in result.messages]
    assert roles == ["user", "assistant", "tool", "tool", "user", "user", "user", "user", "assistant"]
    assert [m.content.rpartition(" ")[2] for m in result.messages[4:8]] == ["before", "before", "after", "after"]


def test_a_stop_hook_keeps_a_run_going_at_most_eight_times(project):
    project.python("Stop", say(decision="block", reason="Again."))
    result = project.run([f"{number}" for number in range(12)])
    assert result.reply == "8"


def test_context_of_a_stop_hook_keeps_the_run_going(project):
    code = "data['stop_hook_active'] or " + say(
        hookSpecificOutput={"hookEventName": "Stop", "additionalContext": "Check the docs too."}
    )
    project.python("Stop", code)
    assert project.run(["One.", "Two."]).reply == "Two."
    assert texts(project.model)[-1] == "Check the docs too."


def test_a_stop_hook_is_not_called_when_a_limit_ends_the_run(project):
    project.add("Stop", "log-event.py")
    assert project.run([call("list_files")] * 3, agent={"limits": Limits(steps=1)}).status == "stopped"
    assert project.log() == []


def test_post_compact_gets_the_summary_and_session_start_is_called_again(project):
    project.add("PostCompact", "log-event.py", "auto").add("SessionStart", "session-context.py", "compact")
    long = [{"role": role, "content": f"{role} says a lot. " * 20} for role in ("user", "assistant") * 2]
    compaction = ContextCompactionHook(Compactor(150, keep_last=1, max_summary_tokens=20))
    agent = project.agent(lambda request: "They talked." if request.purpose == "compaction" else "Ok.", compaction)
    agent.run("Go on.", session=Session("long", messages=long))
    (line,) = project.log()
    assert (line["trigger"], line["compact_summary"]) == ("auto", "They talked.")
    assert "SessionStart hook additional context: Project shop, session compact." in texts(project.model)


# Subagents.


def test_a_subagent_has_start_and_stop_and_its_calls_name_it(project):
    for event in (
        "SubagentStart",
        "SubagentStop",
        "PreToolUse",
        "UserPromptSubmit",
        "Stop",
        "SessionStart",
        "SessionEnd",
    ):
        project.add(event, "log-event.py", timeout=60)
    context = say(hookSpecificOutput={"hookEventName": "SubagentStart", "additionalContext": "Be brief."})
    project.python("SubagentStart", context, "helper").python(
        "SubagentStart", context.replace("brief", "long"), "other"
    )
    model = ScriptedModel([call("look"), "Found."])

    @tool
    def look() -> str:
        """Look."""
        return "x"

    team = Team([Agent("helper", "Helps.", llm=model, tools=[look])])
    agent = project.agent([call("delegate", to="helper", task="Look."), "Ok."], tools=[team])
    agent.run("Do it.")
    next(iter(agent.hooks)).close()
    events = [line["hook_event_name"] for line in project.log()]
    inside = ["SubagentStart", "PreToolUse", "SubagentStop"]
    assert events == ["SessionStart", "UserPromptSubmit", "PreToolUse", *inside, "Stop", "SessionEnd"]
    assert len({(line["session_id"], line["transcript_path"]) for line in project.log()}) == 1
    delegated, start, looked, stop = project.log()[2:6]
    assert delegated["tool_name"] == "Agent"
    assert delegated["tool_input"] == {"subagent_type": "helper", "prompt": "Look."}
    assert "agent_id" not in delegated
    assert start["agent_type"] == looked["agent_type"] == stop["agent_type"] == "helper"
    assert start["agent_id"] == looked["agent_id"] == stop["agent_id"]
    assert [message.content for message in model.requests[0].messages][-2:] == [
        "SubagentStart hook additional context: Be brief.",
        "Look.",
    ]


# Names of tools.


def test_tools_of_the_program_can_be_mapped(project):
    project.add("PreToolUse", "log-event.py", "Bash")
    ran = []

    @tool
    def terminal(line: str) -> str:
        """Run a line."""
        ran.append(line)
        return "ok"

    update = decide("allow", updatedInput={"command": "second"})
    project.python("PreToolUse", update, "Bash")
    names = {"Bash": {"name": "terminal", "arguments": {"command": "line"}}}
    project.run([call("terminal", line="first"), "Ok."], tools=[terminal], names=names)
    assert ran == ["second"]
    assert project.log()[0]["tool_input"] == {"command": "first"}


@pytest.mark.slow
def test_tools_of_an_mcp_server_have_its_name(project):
    pytest.importorskip("mcp")
    from hookline.tools import mcp

    server = project.write(
        "server.py",
        "from mcp.server import MCPServer\nserver = MCPServer('memory')\n\n\n@server.tool()\n"
        "def read_file(path: str) -> str:\n    return path\n\n\nserver.run('stdio')\n",
    )
    project.add("PreToolUse", "log-event.py", "mcp__memory__.*")
    with mcp([sys.executable, str(server)], name="memory") as tools:
        project.run([call("read_file", path="a"), "Ok."], tools=[tools])
    (line,) = project.log()
    assert (line["tool_name"], line["tool_input"]) == ("mcp__memory__read_file", {"path": "a"})


# The environment of a script.


def test_a_command_runs_in_the_folder_with_the_documented_variables(project, monkeypatch):
    monkeypatch.setenv("OWN_VARIABLE", "kept")
    line = 'printf "%s\\n" "$PWD" "$CLAUDE_PROJECT_DIR" "$OWN_VARIABLE" "$CLAUDE_ENV_FILE" > seen'
    project.add("UserPromptSubmit", line).add("SessionStart", "echo $CLAUDE_ENV_FILE > env_file")
    (project.folder / "sub").mkdir()
    project.run(["Ok."], folder=project.folder / "sub")
    seen = (project.folder / "sub" / "seen").read_text().split("\n")
    assert seen[:4] == [str(project.folder / "sub"), str(project.folder), "kept", ""]
    assert (project.folder / "sub" / "env_file").read_text().strip()


@pytest.mark.parametrize("sandbox", ["off", "landlock"])
def test_variables_that_a_session_hook_sets_reach_the_commands_of_its_session(project, sandbox, tmp_path):
    lines = f"export GREETING='a b'; echo noise; PLAIN=1; GIT_PAGER=evil; HOME=/evil; PATH={tmp_path}/bin:odd:$PATH"
    project.python("SessionStart", f"open(os.environ['CLAUDE_ENV_FILE'], 'a').write({lines!r})")
    try:
        tools = [shell_tool(project.write("sub/x", "").parent, sandbox=sandbox)]  # commands must not change the hooks
    except RegistrationError:
        pytest.skip(f"there is no {sandbox} here")
    agent = project.agent([call("shell", command="env"), "Ok.", call("shell", command="env"), "Ok."], tools=tools)
    session = Session("s")
    for result in (agent.run("One.", session=session), agent.run("Two.", session=session)):
        text = next(m.content for m in reversed(result.messages) if m.role == "tool")
        seen = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        assert (seen["GREETING"], seen["PLAIN"]) == ("a b", "1")
        assert seen["GIT_PAGER"] == "cat"
        assert seen["HOME"] != "/evil"
        assert seen["PATH"].split(":")[0] == f"{tmp_path}/bin"
        assert "odd" not in seen["PATH"].split(":")
    project.settings["hooks"].clear()
    assert "GREETING" not in project.run([call("shell", command="env"), "Ok."], tools=tools).messages[2].content


def test_variables_of_one_session_do_not_reach_another(project):
    project.python(
        "SessionStart", "open(os.environ['CLAUDE_ENV_FILE'], 'a').write('export OWNER=' + data['session_id'])"
    )
    agent = project.agent([call("shell", command="env"), "Ok."] * 2)
    for name in ("one", "two"):
        result = agent.run("Go.", session=Session(name))
        assert f"OWNER={name}\n" in next(m.content for m in result.messages if m.role == "tool")


def test_a_file_of_variables_that_is_broken_is_reported(project, caplog):
    project.add("SessionStart", "echo 'exit 3' > \"$CLAUDE_ENV_FILE\"")
    assert project.run(["Ok."]).reply == "Ok."
    assert "CLAUDE_ENV_FILE are not used: exit code 3" in caplog.text


def test_a_command_with_args_runs_without_a_shell(project):
    program = project.write("tool.py", "import sys, json\nopen(sys.argv[2], 'w').write(sys.argv[1])\n")
    args = [str(program), "$HOME; `id`", "${CLAUDE_PROJECT_DIR}/seen"]
    project.add("UserPromptSubmit", sys.executable, args=args)
    project.run(["Ok."])
    assert (project.folder / "seen").read_text() == "$HOME; `id`"


def test_a_rule_in_if_selects_calls(project):
    project.add("PreToolUse", "exit 2", "Bash", **{"if": "Bash(git push*)"})
    turns = [[call("shell", command="git push --force"), call("shell", command="true")], "Ok."]
    assert project.run(turns).steps[0].outcomes == ("blocked", "ok")


def test_a_transcript_can_be_kept_and_hookline_can_import_it(project, tmp_path):
    project.add("Stop", "true")
    project.run([call("write_file", path="a.txt", content="hi"), "Done."], transcripts=tmp_path / "kept")
    (file,) = (tmp_path / "kept").glob("*.jsonl")
    assert file.stat().st_mode & 0o777 == 0o600
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["type"] for line in lines] == ["user", "assistant", "user", "assistant"]
    assert lines[1]["message"]["content"][0]["name"] == "Write"
    assert lines[2]["message"]["content"][0]["type"] == "tool_result"


def test_temporary_transcripts_are_deleted_when_the_hooks_are_closed(project):
    project.add("Stop", "log-event.py")
    with project.hooks() as claude:
        Agent("a", llm=ScriptedModel(["Ok."]), hooks=[claude]).run("Go.")
        path = project.log()[0]["transcript_path"]
        assert os.path.exists(path)
    assert not os.path.exists(path)


def test_a_session_id_cannot_lead_a_transcript_out_of_its_folder(project, tmp_path):
    project.add("Stop", "true")
    agent = project.agent(["Ok."], transcripts=tmp_path / "kept")
    agent.run("Go.", session=Session("../../evil"))
    assert [path.parent for path in tmp_path.rglob("*.jsonl")] == [tmp_path / "kept"]


def test_session_end_hooks_are_called_when_the_program_ends(project):
    project.add("SessionEnd", "log-event.py", "other", timeout=60).add("SessionEnd", "touch wrong", "clear")
    project.hooks()
    code = (
        "from hookline import Agent, ScriptedModel\nfrom hookline.adapters.claude_code import ClaudeHooks\n"
        f"hooks = ClaudeHooks({str(project.file)!r})\n"
        "Agent('a', llm=ScriptedModel(['Ok.']), hooks=[hooks]).run('Go.')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=project.folder, timeout=60)
    (line,) = project.log()
    assert (line["hook_event_name"], line["reason"]) == ("SessionEnd", "other")
    assert not (project.folder / "wrong").exists()


def test_session_end_hooks_have_a_short_time_together(project):
    project.add("SessionEnd", "sleep 600", timeout=0.2).add("SessionEnd", "sleep 601", timeout=0.1)
    claude = project.hooks()
    Agent("a", llm=ScriptedModel(["Ok."]), hooks=[claude]).run("Go.")
    claude.close()


# In the background.


def test_a_hook_in_the_background_does_not_delay_the_run_and_its_context_comes_later(project):
    wait = 'until [ -e "$CLAUDE_PROJECT_DIR"/go ]; do sleep 0.01; done; '
    told = '{"hookSpecificOutput": {"hookEventName": "PostToolUse", "additionalContext": "The tests pass."}}'
    project.add("PostToolUse", f"{wait}echo '{told}'; touch \"$CLAUDE_PROJECT_DIR\"/told", "Write", **{"async": True})
    agent = project.agent([])

    def later(request):
        (project.folder / "go").touch()
        block_until(lambda: _late(agent))
        return call("list_files")

    project.model.turns[:] = ScriptedModel([call("write_file", path="a", content="a"), later, "Ok."]).turns
    agent.run("Go.")
    assert "PostToolUse hook additional context: The tests pass." in texts(project.model)


def _late(agent):
    """Return whether no hook runs in the background any more."""
    (claude,) = agent.hooks
    return not claude._shared.scripts


def test_a_hook_can_wake_the_agent_from_the_background(project):
    project.add("PostToolUse", "echo 'The tests fail.' >&2; exit 2", "Write", asyncRewake=True)
    agent = project.agent([])

    def done(request):
        block_until(lambda: _late(agent))
        return "Done."

    project.model.turns[:] = ScriptedModel([call("write_file", path="a", content="a"), done, "Fixed."]).turns
    assert agent.run("Go.").reply == "Fixed."
    assert texts(project.model)[-1] == "PostToolUse hook feedback: The tests fail."


def test_a_hook_that_goes_to_the_background_itself_is_not_waited_for(project):
    wait = 'until [ -e "$CLAUDE_PROJECT_DIR"/a ]; do sleep 0.01; done; touch "$CLAUDE_PROJECT_DIR"/b'
    project.add("PreToolUse", f'echo \'{{"async": true, "asyncTimeout": 60000}}\'; {wait}', "Write")
    agent = project.agent([call("write_file", path="a", content="a"), "Ok."])
    assert agent.run("Go.").steps[0].outcomes == ("ok",)
    block_until((project.folder / "b").exists)


def test_closing_the_hooks_ends_what_runs_in_the_background(project):
    project.add("PostToolUse", 'echo $$ > "$CLAUDE_PROJECT_DIR"/pid; sleep 600', "Write", **{"async": True})
    agent = project.agent([call("write_file", path="a", content="a"), "Ok."])
    agent.run("Go.")
    block_until(lambda: (project.folder / "pid").exists() and (project.folder / "pid").read_text().strip())
    (claude,) = agent.hooks
    claude.close()
    block_until(lambda: not claude._shared.scripts)


# HTTP.


class _Server(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((json.loads(body), dict(self.headers)))
        status, reply = self.server.replies.get(self.path, (200, b""))
        self.send_response(status)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *args):
        pass


@pytest.fixture
def web():
    server = HTTPServer(("127.0.0.1", 0), _Server)
    server.requests, server.replies = [], {}
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def add_url(project, web, path, event="PreToolUse", **more):
    handler = {"type": "http", "url": f"http://127.0.0.1:{web.server_port}{path}", **more}
    project.settings["hooks"].setdefault(event, []).append({"matcher": "", "hooks": [handler]})


def test_a_url_gets_the_input_and_decides_with_json(project, web, monkeypatch):
    monkeypatch.setenv("TOKEN", "secret")
    monkeypatch.setenv("OTHER", "hidden")
    headers = {"Authorization": "Bearer $TOKEN", "X-Other": "${OTHER}."}
    add_url(project, web, "/deny", headers=headers, allowedEnvVars=["TOKEN"])
    denied = {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": "No, says HTTP."}
    web.replies["/deny"] = (200, json.dumps({"hookSpecificOutput": denied}).encode())
    result = project.run([call("list_files"), "Ok."])
    assert result.messages[2].content == "No, says HTTP."
    ((body, sent),) = web.requests
    assert body["hook_event_name"] == "PreToolUse"
    assert (sent["Authorization"], sent["X-Other"]) == ("Bearer secret", ".")


@pytest.mark.parametrize(
    ("status", "reply", "problem"),
    [
        (500, b'{"decision": "block"}', "status 500"),
        (302, b"", "status 302"),
        (200, b"<html>Please log in.</html>", "not a JSON object"),
        (200, b"", ""),
    ],
)
@pytest.mark.parametrize("policy", ["open", "block"])
def test_only_json_with_status_2xx_decides(project, web, status, reply, problem, policy, caplog):
    add_url(project, web, "/", on_failure=policy)
    web.replies["/"] = (status, reply)
    outcome = project.run([call("list_files"), "Ok."]).steps[0].outcomes[0]
    assert outcome == ("blocked" if policy == "block" and problem else "ok")
    assert problem in caplog.text


@pytest.mark.parametrize("reply", [b"{", b'{"decision": "ask"}', b'[{"decision": "block"}]'])
def test_a_decision_of_a_url_that_is_not_understood_blocks(project, web, reply):
    add_url(project, web, "/")
    web.replies["/"] = (200, reply)
    assert project.run([call("list_files"), "Ok."]).steps[0].outcomes == ("blocked",)


def test_a_url_that_nobody_answers_is_a_failure(project, web, caplog):
    add_url(project, web, "/")
    web.server_close()
    handler = project.settings["hooks"]["PreToolUse"][0]["hooks"][0]
    handler["url"] = "http://127.0.0.1:9/"
    assert project.run([call("list_files"), "Ok."]).steps[0].outcomes == ("ok",)
    assert "refused the connection" in caplog.text


def test_urls_at_the_end_of_sessions_share_their_time(project, caplog):
    """A server that accepts and never answers delays the end of ten sessions once, not ten times."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        project.settings["hooks"]["SessionEnd"] = [{"hooks": [{"type": "http", "url": url, "timeout": 0.5}]}]
        agent = project.agent(["Ok."] * 10)
        for number in range(10):
            agent.run("Go.", session=Session(f"s{number}"))
        (claude,) = agent.hooks
        claude.close()
    assert caplog.text.count("it took longer than") == 1
    assert caplog.text.count("there was no time left for it") == 9


# Strict agents, and the same hooks twice.


def test_a_strict_agent_accepts_a_guard_that_fails_closed_as_cover(project):
    project.add("PreToolUse", "true", "Bash")
    with pytest.raises(RegistrationError, match="no guard names"):
        project.agent([], agent={"strict": True})
    project.settings["hooks"].clear()
    project.add("PreToolUse", "true", "", on_failure="block")
    assert project.run([call("list_files"), "Ok."], agent={"strict": True}).steps[0].outcomes == ("ok",)


def test_hooks_work_in_async_programs_and_concurrent_runs(project):
    import asyncio

    project.python("PreToolUse", "data['tool_input'].get('path') == 'bad' and sys.exit(2)")
    project.hooks()

    async def many():
        claude = project.hooks()
        agents = [
            Agent(f"a{n}", llm=ScriptedModel([call("list_files", path="bad" if n % 2 else "."), "Ok."]),
                  tools=project.agent([]).tools, hooks=[claude])
            for n in range(4)
        ]  # fmt: skip
        return await asyncio.gather(*(agent.arun("Go.") for agent in agents))

    results = asyncio.run(many())
    assert [result.steps[0].outcomes for result in results] == [("ok",), ("blocked",)] * 2


# Sessions.


def test_a_session_can_be_ended_with_a_reason_and_the_next_one_knows_that_it_was_cleared(project):
    project.add("SessionEnd", "log-event.py", "clear", timeout=60).add("SessionStart", "session-context.py")
    agent, session = project.agent(["One.", "Two."]), Session("first")
    agent.run("Hello.", session=session)
    (claude,) = agent.hooks
    claude.end_session("first", "clear")
    claude.end_session("unknown", "clear")
    (line,) = project.log()
    assert (line["session_id"], line["reason"]) == ("first", "clear")
    agent.run("Again.", session=Session("second"))
    assert "SessionStart hook additional context: Project shop, session clear." in texts(project.model)
    claude.close()
    assert len(project.log()) == 1


def test_the_transcript_is_complete_when_a_session_ends(project):
    project.add("SessionEnd", "jq -r .transcript_path | xargs cp -t .", timeout=60)
    agent = project.agent([call("list_files"), "The last words."])
    agent.run("Go.", session=Session("one"))
    next(iter(agent.hooks)).close()
    assert "The last words." in (project.folder / "one.jsonl").read_text()


def test_a_session_hook_can_begin_a_conversation_in_the_name_of_the_user(project):
    first = {"hookEventName": "SessionStart", "initialUserMessage": "Read the README first."}
    project.python("SessionStart", say(hookSpecificOutput=first))
    project.run(["Ok."], task="Then work.")
    assert texts(project.model) == ["Read the README first.", "Then work."]


def test_exit_code_2_at_the_start_of_a_session_is_for_the_user(project, caplog):
    project.add("SessionStart", "echo 'The database is down.' >&2; exit 2")
    assert project.run(["Ok."]).reply == "Ok."
    assert "SessionStart hook: The database is down." in caplog.text
    assert texts(project.model) == ["Do it."]


@pytest.mark.parametrize(
    ("event", "output", "name"),
    [
        ("SessionStart", {"sessionTitle": "T"}, "sessionTitle"),
        ("SessionStart", {"watchPaths": ["a"]}, "watchPaths"),
        ("SessionStart", {"reloadSkills": True}, "reloadSkills"),
        ("UserPromptSubmit", {"suppressOriginalPrompt": True}, "suppressOriginalPrompt"),
        ("PostToolUse", {"classifierContext": "C"}, "classifierContext"),
        ("PermissionRequest", {"decision": {"behavior": "allow", "updatedPermissions": [{}]}}, "updatedPermissions"),
    ],
)
def test_what_has_no_effect_is_reported_once_by_name(project, event, output, name, caplog):
    @guard(BEFORE_TOOL)
    def ask(ctx, request):
        return HookResult.ask("Sure?") if event == "PermissionRequest" else None

    project.python(event, say(terminalSequence="x", hookSpecificOutput={"hookEventName": event, **output}))
    project.run([call("list_files"), call("list_files"), "Ok."], ask)
    for each in (name, "terminalSequence"):
        assert caplog.text.count(f"returned {each}, which has no effect in Hookline") == 1


def test_half_of_a_surrogate_pair_from_a_model_reaches_the_hooks_as_an_escape(project):
    project.add("PreToolUse", "cat > input; exit 2")
    result = project.run([call("shell", command="echo \ud83d"), "Ok."])
    assert result.steps[0].outcomes == ("blocked",)
    assert json.loads((project.folder / "input").read_text())["tool_input"]["command"] == "echo \ud83d"


@pytest.mark.parametrize("policy", ["open", "block"])
def test_a_call_whose_updated_input_cannot_be_used_does_not_run(project, policy, caplog):
    project.write("a.txt", "A")
    both = {"file_path": "a.txt", "path": "b.txt"}
    project.python("PreToolUse", decide("allow", updatedInput=both), on_failure=policy)
    assert project.run([call("read_file", path="a.txt"), "Ok."]).steps[0].outcomes == ("blocked",)
    assert "its updatedInput cannot be used: an argument is given under two names" in caplog.text
