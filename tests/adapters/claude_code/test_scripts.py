"""Real-world style hook scripts (bash with jq, Python, node) in a real run: one per documented behaviour."""

import pytest

from hookline import APPROVAL_REQUESTED, Agent, HookResult, Limits, ScriptedModel, Session, call, hook, tool
from hookline.hooks import Compactor, ContextCompactionHook
from hookline.teams import Team

from ...waiting import block_until

pytestmark = pytest.mark.slow  # real processes and servers


def texts(model):
    """Return the texts of the last request to the model."""
    return [message.content for message in model.requests[-1].messages]


def test_exit_code_2_blocks_a_write_and_stderr_is_the_reason_for_the_model(project):
    project.add("PreToolUse", "protect-files.sh", "Edit|Write")
    project.write(".env", "KEY=1\n")
    turns = [[call("write_file", path=".env", content="gone"), call("write_file", path="a.txt", content="a")], "Ok."]
    result = project.run(turns)
    assert result.steps[0].outcomes == ("blocked", "ok")
    assert (project.folder / ".env").read_text() == "KEY=1\n"
    assert (project.folder / "a.txt").read_text() == "a"
    reason = f"Blocked: {project.folder}/.env matches the protected pattern '.env'"
    assert [m.content for m in result.messages if m.role == "tool"][0] == reason


def test_json_denies_a_command(project):
    project.add("PreToolUse", "block-rm.sh", "Bash")
    canary = project.write("data/canary", "alive")
    result = project.run([[call("shell", command="rm -rf data"), call("shell", command="touch done")], "Ok."])
    assert result.steps[0].outcomes == ("blocked", "ok")
    assert canary.read_text() == "alive"
    assert (project.folder / "done").exists()
    assert "Destructive command blocked by hook" in texts(project.model)


def test_updated_input_changes_the_command_and_additional_context_reaches_the_model(project):
    project.add("PreToolUse", "prefer-pnpm.py", "Bash")
    result = project.run([call("shell", command="npm install"), "Ok."])
    assert "pnpm: program not found" in result.messages[2].content
    assert texts(project.model)[-1] == "PreToolUse hook additional context: Use pnpm, not npm."


@pytest.mark.parametrize("approved", [True, False])
def test_ask_goes_to_the_approvers_with_the_reason(project, approved):
    project.add("PreToolUse", "ask-before-push.js", "Bash")
    asked = []

    @hook(APPROVAL_REQUESTED)
    def person(ctx, request):
        asked.append([question.text for question in request.questions])
        return HookResult.approve(by="Ada") if approved else HookResult.deny("Not today.", by="Ada")

    turns = [[call("shell", command="git push"), call("shell", command="echo hello")], "Ok."]
    result = project.run(turns, person)
    assert asked == [["This changes the remote repository."]]
    assert result.steps[0].outcomes == ("ok" if approved else "blocked", "ok")


def test_a_permission_request_hook_answers_questions_of_other_guards(project):
    project.add("PermissionRequest", "approve-reads.js", "Bash")

    @hook("before_tool")
    def ask_about_everything(ctx, request):
        return HookResult.ask("May it run?")

    turns = [[call("shell", command="ls"), call("shell", command="touch written")], "Ok."]
    result = project.run(turns, ask_about_everything)
    assert result.steps[0].outcomes == ("ok", "blocked")
    assert not (project.folder / "written").exists()
    assert "Ask the team first." in texts(project.model)


def test_updated_tool_output_replaces_the_result_and_a_system_message_reaches_the_user(project, caplog):
    project.add("PostToolUse", "redact-secrets.py", "Bash")
    result = project.run([call("shell", command="echo tok_123 ok"), "Ok."])
    assert result.messages[2].content == "[redacted] ok\n[exit code 0]"
    assert "A token was redacted." in caplog.text


def test_exit_code_2_after_a_call_gives_the_model_the_complaint(project):
    project.add("PostToolUse", "lint-after-write.sh", "Write")
    result = project.run([call("write_file", path="a.txt", content="x \n"), "Ok."])
    assert (project.folder / "a.txt").read_text() == "x \n"  # it has happened already
    assert result.steps[0].outcomes == ("ok",)
    assert texts(project.model)[-1] == "PostToolUse:Write hook feedback: a.txt has trailing spaces"


def test_a_hook_after_a_failed_call_adds_advice(project):
    project.add("PostToolUseFailure", "explain-failure.sh", "Read")
    project.run([call("read_file", path="nothing.txt"), "Ok."])
    assert "look at CONTRIBUTING.md" in texts(project.model)[-1]
    assert "does not exist" in texts(project.model)[-1]


def test_a_prompt_hook_blocks_a_prompt_or_adds_its_text_as_context(project):
    project.add("UserPromptSubmit", "prompt-context.sh")
    agent = project.agent(["Ok."])
    blocked = agent.run("My password is 123")
    assert (blocked.status, blocked.reply) == ("ended", "Remove the password from your prompt.")
    assert project.model.requests == []
    assert agent.run("When is the release?").reply == "Ok."
    assert texts(project.model) == [
        "UserPromptSubmit hook additional context: The release is on Friday.",
        "When is the release?",
    ]


def test_a_session_hook_adds_context_once_and_knows_a_resumed_session(project):
    project.add("SessionStart", "session-context.py")
    agent, session = project.agent(["One.", "Two."]), Session()
    agent.run("Hello.", session=session)
    agent.run("Again.", session=session)
    added = "SessionStart hook additional context: Project shop, session {}."
    assert [text for text in texts(project.model) if "SessionStart" in text] == [added.format("startup")]
    resumed = Session("old", messages=[{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hi!"}])
    project.agent(["Three."]).run("And now?", session=resumed)
    assert added.format("resume") in texts(project.model)


def test_a_stop_hook_keeps_the_agent_working(project):
    project.add("Stop", "tests-must-pass.sh")
    result = project.run(["Done.", "Now it is done."])
    assert result.reply == "Now it is done."
    assert texts(project.model)[-1] == "Stop hook feedback: The tests fail. Fix them."
    assert (project.folder / "stops.log").read_text().split() == ["false", "true"]


def test_a_hook_can_forbid_a_compaction(project):
    project.add("PreCompact", "keep-history.sh")
    compaction = ContextCompactionHook(Compactor(120, keep_last=1, max_summary_tokens=20))
    long = [{"role": role, "content": f"{role} says a lot. " * 20} for role in ("user", "assistant") * 2]
    result = project.run(["Ok."], compaction, agent={"limits": Limits(steps=3)})
    assert result.reply == "Ok."
    session = Session("long", messages=long)
    project.agent(["Ok."], compaction).run("Go on.", session=session)
    assert len(session.messages) == 6


def test_a_hook_reads_the_transcript_of_a_subagent(project):
    project.add("SubagentStop", "last-words.js", "helper")
    team = Team([Agent("helper", "Helps.", llm=ScriptedModel(["Salt is NaCl."]))])
    result = project.run([call("delegate", to="helper", task="What is salt?"), "Ok."], tools=[team])
    assert result.reply == "Ok."
    assert (project.folder / "last-words").read_text() == "helper: Salt is NaCl."


def test_continue_false_after_a_batch_stops_the_agent(project):
    project.add("PostToolBatch", "stop-everything.py")
    two = [call("write_file", path=name, content=name) for name in ("a", "b")]
    result = project.run([call("write_file", path="c", content="c"), two, "Never."])
    assert result.status == "stopped"
    assert result.stop.message == "Two files at once: please review first."
    assert len(result.steps) == 2


def test_a_hook_that_logs_all_events_sees_the_documented_fields(project):
    events = ("SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "PostToolBatch", "Stop", "SessionEnd")
    for event in events:
        project.add(event, "log-event.py", timeout=60)
    agent = project.agent([call("write_file", path="a.txt", content="hi"), "Done."])
    agent.run("Write a file.")
    for each in agent.hooks:
        each.close()
    log = project.log()
    assert [line["hook_event_name"] for line in log] == list(events)
    start, prompt, before, after, batch, stop, end = log
    for line in log:
        assert line["cwd"] == str(project.folder)
        assert line["session_id"] == start["session_id"]
        assert line["transcript_path"].endswith(f"{start['session_id']}.jsonl")
    assert (start["source"], start["model"]) == ("startup", "scripted")
    assert prompt["prompt"] == "Write a file."
    written = {"file_path": f"{project.folder}/a.txt", "content": "hi"}
    assert (before["tool_name"], before["tool_input"]) == ("Write", written)
    assert before["tool_use_id"] == after["tool_use_id"] == batch["tool_calls"][0]["tool_use_id"]
    assert before["permission_mode"] == "default"
    assert after["tool_response"]["filePath"] == written["file_path"]
    assert after["duration_ms"] >= 0
    assert batch["tool_calls"][0]["tool_input"] == written
    assert batch["tool_calls"][0]["tool_response"] == "Wrote 2 characters to a.txt."
    assert (stop["stop_hook_active"], stop["last_assistant_message"]) == (False, "Done.")
    assert end["reason"] == "other"


def test_a_notification_hook_is_called_when_a_person_is_asked(project):
    project.add("Notification", "log-event.py", "permission_prompt")
    project.add("PreToolUse", "ask-before-push.js", "Bash")
    agent = project.agent([call("shell", command="git push"), "Ok."])
    agent.run("Push.")
    block_until(project.log)
    (line,) = project.log()
    assert line["notification_type"] == "permission_prompt"
    assert "Bash" in line["message"]


@pytest.mark.slow
def test_a_script_blocks_a_call_of_the_embedded_model(project):
    pytest.importorskip("xllamacpp")
    ran = []

    @tool
    def set_timer(minutes: int) -> str:
        """Set a timer for a number of minutes."""
        ran.append(minutes)
        return "The timer is running."

    project.python("PreToolUse", "print('No timers today.', file=sys.stderr); sys.exit(2)", "set_timer")
    agent = Agent("small", llm="local", tools=[set_timer], hooks=[project.hooks()], limits=Limits(steps=1))
    result = agent.run("Set a timer for 15 minutes.")
    assert result.steps[0].outcomes == ("blocked",)
    assert result.messages[-1].content == "No timers today."
    assert ran == []
