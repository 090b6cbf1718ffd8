"""RecordHook: what a record contains, and that recording changes nothing else."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import (
    AFTER_LLM,
    AFTER_TOOL,
    APPROVAL_REQUESTED,
    BEFORE_LLM,
    BEFORE_TOOL,
    ON_RUN_END,
    ON_RUN_START,
    ON_TOKEN,
    Agent,
    HookResult,
    Limits,
    RegistrationError,
    ScriptedModel,
    call,
    guard,
    hook,
    observer,
    reply,
    tool,
)
from hookline._base.own_files import protection_of
from hookline.hooks import Redactor
from hookline.models import ModelResponse
from hookline.payloads import ToolCall
from hookline.records import Account, RecordHook, read_runs
from hookline.records.reading import judged_payload
from tests.properties import examples

from ..waiting import block_until


@tool(effects=[])
def add(a: int, b: int = 2) -> int:
    """Add."""
    return a + b


@tool(effects=[])
def echo(text: str) -> str:
    """Return the text."""
    return text


def agent(turns, *hooks, tools=(add, echo), **options):
    return Agent("tester", llm=ScriptedModel(turns), tools=tools, hooks=hooks, **options)


def recorded(folder, turns=None, *hooks, task="Add", record=None, tools=(add, echo), **options):
    """Run an agent with these hooks, and return its record."""
    record = RecordHook(folder) if record is None else record
    agent(turns or [call("add", a=1), reply("three")], *hooks, record, tools=tools, **options).run(task)
    (run,) = read(folder)
    return run


def read(folder):
    account = Account()
    runs = list(read_runs([folder], account=account))
    assert not account, account.skipped
    return runs


def at(run, point):
    return [moment for moment in run.moments if moment.point == point]


def content(folder):
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*.moments")))


def test_a_run_is_recorded_with_its_main_points_in_order(tmp_path):
    run = recorded(tmp_path)
    assert [(moment.point, moment.tool) for moment in run.moments] == [
        ("on_run_start", ""),
        ("before_llm", ""),
        ("after_llm", ""),
        ("before_tool", "add"),
        ("after_tool", "add"),
        ("before_llm", ""),
        ("after_llm", ""),
        ("on_stop", ""),
        ("on_run_end", ""),
    ]
    assert [moment.position for moment in run.moments] == list(range(9))
    assert [moment.at for moment in run.moments] == sorted(moment.at for moment in run.moments)
    assert (run.info.task, run.info.ids.agent, run.info.model) == ("Add", "tester", "scripted")
    assert (run.end.status, run.end.reply, run.end.steps, run.end.tool_calls) == ("completed", "three", 2, 1)
    assert [tool.name for tool in run.info.tools] == ["add", "echo"]


class Witness:
    """Keeps every payload as it arrives."""

    points = frozenset((ON_RUN_START, BEFORE_LLM, AFTER_LLM, BEFORE_TOOL, AFTER_TOOL, ON_RUN_END))
    priority = 1000
    phase = "rewrite"

    def __init__(self):
        self.seen = []

    def __call__(self, point, ctx, payload):
        self.seen.append((str(point), payload))


def test_every_payload_is_restored_as_it_arrived_although_later_hooks_change_it(tmp_path):
    @hook(BEFORE_LLM)
    def add_note(ctx, request):
        return request.replace(messages=(*request.messages, {"role": "user", "content": "Be brief."}))

    @hook(AFTER_LLM)
    def upper(ctx, answer):
        return answer.replace(content=answer.content.upper())

    @hook(BEFORE_TOOL)
    def more(ctx, request):
        return request.replace(arguments={**request.arguments, "a": 40})

    @hook(AFTER_TOOL)
    def words(ctx, result):
        return result.replace(result=f"It is {result.result}.")

    witness = Witness()
    turns = [call("add", a=1), call("echo", text="x"), reply("done")]
    run = recorded(tmp_path, turns, witness, add_note, upper, more, words)
    main = [moment for moment in run.moments if moment.point in Witness.points]
    assert [(moment.point, moment.payload) for moment in main] == witness.seen


def test_the_same_holds_without_other_hooks(tmp_path):
    turns = [call("add", a=1), call("add", a=2, b=5), reply("done")]
    messages = recorded(tmp_path / "a", turns).moments[-1].payload.messages
    witness = Witness()
    run = recorded(tmp_path / "b", turns, witness)
    assert list(messages) == list(witness.seen[-1][1].messages)
    assert [moment.payload for moment in at(run, "before_llm")] == [p for name, p in witness.seen if name == BEFORE_LLM]


def test_decisions_contain_verb_reason_value_change_and_state(tmp_path):
    @hook(BEFORE_TOOL)
    def double(ctx, request):
        return HookResult.replace(
            request.replace(arguments={"a": 2}), reason="twice", state=ctx.state.with_metadata(x=1)
        )

    @guard(BEFORE_TOOL)
    def refuse(ctx, request):
        return HookResult.block("Not today.", reason="closed")

    @guard(AFTER_TOOL, on_failure="open")
    def shaky(ctx, result):
        raise KeyError("lost")

    @observer(AFTER_TOOL)
    def watch(ctx, result):
        pass

    run = recorded(tmp_path, None, double, refuse, shaky, watch)
    (before,) = at(run, "before_tool")
    first, second = before.decisions
    assert (first.hook, first.phase, first.verb, first.reason) == ("double", "rewrite", "replace", "twice")
    assert first.changed == {"arguments": {"a": 2}}
    assert first.state == {"metadata": {"x": 1}}
    assert (second.hook, second.phase, second.verb, second.reason) == ("refuse", "guard", "block", "closed")
    assert second.value == "Not today."
    assert second.took > 0
    assert (before.verdict.verb, before.verdict.hook, before.verdict.reason) == ("block", "refuse", "closed")
    assert before.payload.arguments == {"a": 1}
    assert judged_payload(before).arguments == {"a": 2, "b": 2}
    (after,) = at(run, "after_tool")
    (failed,) = after.decisions
    assert (failed.hook, failed.verb, failed.error) == (
        "shaky", "failed", "hook 'shaky' failed at after_tool: KeyError: 'lost'",
    )  # fmt: skip
    assert after.payload.outcome == "blocked"


def test_arguments_that_validation_changed_are_recorded_as_the_guards_saw_them(tmp_path):
    for number, hooks in enumerate(([], [guard(BEFORE_TOOL)(lambda ctx, request: None)])):
        run = recorded(tmp_path / str(number), [call("add", a="1"), reply("three")], *hooks)
        (moment,) = at(run, "before_tool")
        assert moment.payload.arguments == {"a": "1"}
        assert judged_payload(moment).arguments == {"a": 1, "b": 2}


@pytest.mark.parametrize("hooks", [[], [guard(BEFORE_TOOL)(lambda ctx, request: None)]])
def test_a_call_that_validation_rejects_has_the_verdict_invalid(tmp_path, hooks):
    run = recorded(tmp_path, [call("add", a="one"), call("nothing"), reply("I cannot.")], *hooks)
    assert [moment.verdict.verb for moment in at(run, "before_tool")] == ["invalid", "invalid"]


def test_the_hooks_of_a_run_are_described(tmp_path):
    @guard(BEFORE_TOOL, tools="add", priority=5, on_failure="block")
    def careful(ctx, request):
        return None

    run = recorded(tmp_path, None, careful)
    (info,) = [one for one in run.hooks if one.name == "careful"]
    where = info.points["before_tool"]
    assert (where.phase, where.priority, where.tools, where.on_failure) == ("guard", 5, ("add",), "block")
    assert len(info.source) == 8
    assert info.module == __name__


def test_a_nested_run_is_part_of_the_block_of_its_outer_run(tmp_path):
    record = RecordHook(tmp_path)
    inner = Agent("inner", llm=ScriptedModel([call("add", a=5), reply("seven")]), tools=[add], hooks=[record])

    @tool(effects=[])
    async def ask(question: str) -> str:
        """Ask another agent."""
        return (await inner.arun(question)).reply

    run = recorded(tmp_path, [call("ask", question="5+2?"), reply("7")], record=record, tools=[ask])
    (nested,) = run.nested
    assert (nested.info.outer, nested.info.task, nested.info.ids.agent) == (0, "5+2?", "inner")
    assert nested.info.ids.parent_run_id == run.id
    assert nested.info.at > 0
    (call_id,) = [moment.payload.id for moment in run.moments if moment.point == "before_tool"]
    assert nested.info.call_id == call_id
    assert [moment.point for moment in nested.moments].count("before_tool") == 1
    positions = [moment.position for each in run.tree() for moment in each.moments]
    assert sorted(positions) == list(range(len(positions)))
    assert nested.end.reply == "seven"


def test_parallel_runs_are_recorded_apart(tmp_path):
    record = RecordHook(tmp_path)

    async def main():
        agents = [agent([call("add", a=number), reply(str(number))], record) for number in range(8)]
        await asyncio.gather(*(one.arun(f"Task {number}") for number, one in enumerate(agents)))

    asyncio.run(main())
    runs = read(tmp_path)
    assert sorted(run.info.task for run in runs) == [f"Task {number}" for number in range(8)]
    for run in runs:
        assert run.info.task == f"Task {run.end.reply}"
        assert [moment.payload.arguments["a"] for moment in at(run, "before_tool")] == [int(run.end.reply)]


@pytest.mark.parametrize("by", ["", "expired", "no terminal", "--deny", "--yes", "grant g_1 of ann"])
def test_decisions_that_no_person_made_about_the_call_are_not_labels(tmp_path, by):
    @guard(BEFORE_TOOL, tools="add")
    def ask(ctx, request):
        return HookResult.ask("Add?")

    @hook(APPROVAL_REQUESTED)
    def decide(ctx, request):
        return HookResult.deny("No.", by=by) if by else None

    assert recorded(tmp_path, [call("add", a=1), reply("done")], ask, decide).labels == []


def test_approvals_are_labels_of_the_call_they_are_about(tmp_path):
    @guard(BEFORE_TOOL, tools="add")
    def ask(ctx, request):
        return HookResult.ask("Add?", reason="sums are dangerous")

    @hook(APPROVAL_REQUESTED)
    def ann(ctx, request):
        return HookResult.approve(by="ann") if request.call.arguments["a"] == 1 else HookResult.deny("No.", by="bob")

    run = recorded(tmp_path, [call("add", a=1), call("add", a=2), reply("done")], ask, ann)
    yes, no = run.labels
    assert (yes.label.label, yes.label.by, no.label.label, no.label.by) == ("approved", "ann", "denied", "bob")
    by_position = {moment.position: moment for moment in run.moments}
    assert [by_position[line.n].payload.arguments["a"] for line in (yes, no)] == [1, 2]
    assert {by_position[line.n].point for line in (yes, no)} == {"before_tool"}
    assert (no.tool, no.label.is_bad) == ("add", True)


def test_all_points_are_recorded_on_request(tmp_path):
    run = recorded(tmp_path, record=RecordHook(tmp_path, points="all"))
    points = {moment.point for moment in run.moments}
    assert {"session_start", "before_prompt_build", "before_step", "on_progress", "after_step"} <= points
    assert "on_token" not in points
    assert "before_step" in run.info.points


def test_only_the_named_points_are_recorded(tmp_path):
    run = recorded(tmp_path, record=RecordHook(tmp_path, points=[BEFORE_TOOL, ON_TOKEN]))
    assert {moment.point for moment in run.moments} == {"before_tool", "on_token"}
    assert run.info.points == ("before_tool", "on_token")
    assert run.end.status == "completed"


SECRET = "sk-proj-Zk3nQ8vX2mT7pL5wR9yB4cD6fG1hJ0aS"


def test_a_secret_never_reaches_the_disk(tmp_path):
    @hook(BEFORE_TOOL, tools="echo")
    def rewrite(ctx, request):
        return HookResult.replace(request.replace(arguments={"text": f"again {SECRET}"}), reason=f"has {SECRET}")

    @guard(AFTER_TOOL)
    def fail(ctx, result):
        raise ValueError(SECRET)

    fail.on_failure = "open"
    turns = [
        call("echo", text=f"key {SECRET}"),
        call("login", password="correct-horse-battery-1", card=4111111111111111),
        reply(f"The key is {SECRET}, mail jane.roe@example.org"),
    ]

    @tool(effects=[])
    def login(password: str, card: int) -> dict:
        """Log in."""
        return {"password": password, "card": card, "nested": [{"token": SECRET}]}

    run = recorded(
        tmp_path,
        turns,
        rewrite,
        fail,
        task=f"Use {SECRET}",
        tools=[echo, login],
        instructions=f"The key is {SECRET}.",
    )
    for path in sorted(tmp_path.rglob("*")):
        if path.is_file():
            for sensitive in (SECRET, "correct-horse-battery-1", "4111111111111111", "jane.roe@example.org"):
                assert sensitive.encode() not in path.read_bytes()
    assert run.info.task == "Use [secret]"
    assert run.end.reply == "The key is [secret], mail j***@example.org"
    first, second = at(run, "before_tool")
    assert first.notes.inexact == "redacted"
    assert first.payload.arguments == {"text": "key [secret]"}
    assert first.decisions[0].changed == {"arguments": {"text": "again [secret]"}}
    assert first.decisions[0].reason == "has [secret]"
    assert second.payload.arguments == {"password": "[secret]", "card": "[card]"}


def test_a_secret_never_reaches_the_disk_while_the_run_is_in_progress(tmp_path):
    seen = []

    @tool(effects=[])
    def look(text: str) -> str:
        """Read the records."""
        seen.append(content(tmp_path))
        return "seen"

    recorded(tmp_path, [call("look", text=SECRET), reply("ok")], tools=[look])
    assert b'"before_tool","look"' in seen[0]
    assert SECRET.encode() not in seen[0]


def test_payloads_without_sensitive_values_are_exact(tmp_path):
    run = recorded(tmp_path, [call("echo", text="hello"), reply("ok")])
    assert {moment.notes.inexact for moment in run.moments} == {""}


@pytest.mark.parametrize(
    ("redact", "expected"),
    [
        (False, "mail jane.roe@example.org"),
        (Redactor(["email"], "mask"), "mail j***@example.org"),
        (lambda text: text.replace("jane", "J"), "mail J.roe@example.org"),
    ],
)
def test_the_redaction_can_be_chosen(tmp_path, redact, expected):
    record = RecordHook(tmp_path, redact=redact)
    run = recorded(tmp_path, [reply("ok")], task="mail jane.roe@example.org", record=record)
    assert run.info.task == at(run, "on_run_start")[0].payload.task == expected


def test_a_text_is_withheld_if_the_redactor_fails(tmp_path):
    def broken(text):
        raise ValueError("oops")

    run = recorded(tmp_path, [reply("ok")], task="secret plan", record=RecordHook(tmp_path, redact=broken))
    assert b"secret plan" not in content(tmp_path)
    assert run.info.task == "[withheld: the redactor failed with ValueError]"


def test_long_texts_are_cut(tmp_path):
    record = RecordHook(tmp_path, max_text=10)
    run = recorded(tmp_path, [call("echo", text="x" * 15), reply("ok")], record=record)
    (moment,) = at(run, "before_tool")
    assert moment.payload.arguments == {"text": "xxxxxxxxxx…(+5)"}
    assert moment.notes.inexact == "cut"


def test_a_secret_at_the_cut_is_redacted_before(tmp_path):
    record = RecordHook(tmp_path, max_text=20)
    recorded(tmp_path, [call("echo", text=f"here it is: {SECRET}"), reply("ok")], record=record)
    assert SECRET[:8].encode() not in content(tmp_path)


@pytest.mark.parametrize("shown", range(1, len(SECRET) + 1, 3))
def test_a_secret_that_is_cut_in_two_is_not_recorded_although_replacements_shorten_the_text(tmp_path, shown):
    record = RecordHook(tmp_path, max_text=20_000)
    before = f"{SECRET} " * 700  # it is replaced by something shorter, so the end of what is searched comes into view
    text = before.ljust(30_000 - shown, ".") + SECRET + " and more" * 100
    recorded(tmp_path, [call("echo", text=text), reply("ok")], record=record)
    assert b"." + SECRET[:8].encode()[:shown] not in content(tmp_path)


def test_a_secret_that_a_model_uses_as_the_name_of_a_tool_is_not_recorded(tmp_path):
    @guard(BEFORE_TOOL)
    def ask_first(ctx, request):
        return HookResult.ask("May it?")

    run = recorded(
        tmp_path, [call(SECRET, text="x"), reply("ok")], ask_first, record=RecordHook(tmp_path, points="all")
    )
    assert SECRET.encode() not in content(tmp_path)
    (moment,) = at(run, "after_tool")
    assert (moment.tool, moment.notes.inexact) == ("[secret]", "redacted")


def test_invalid_unicode_is_recorded(tmp_path):
    run = recorded(tmp_path, [call("echo", text="a\ud800b"), reply("ok")])
    assert at(run, "before_tool")[0].payload.arguments == {"text": "a?b"}


def test_a_folder_that_cannot_be_written_does_not_stop_the_run(tmp_path, caplog):
    place = tmp_path / "file"
    record = RecordHook(place / "records")
    place.write_text("not a folder")
    result = agent([call("add", a=1), reply("three")], record).run("Add")
    assert result.reply == "three"
    (error,) = result.errors
    assert "records cannot be written to" in error.message
    assert len([entry for entry in caplog.records if "cannot be written" in entry.getMessage()]) >= 1


def test_a_disk_that_gets_full_does_not_stop_the_run_and_leaves_a_readable_record(tmp_path, monkeypatch):
    real, room = os.write, [2000]

    def limited(file, data):
        if len(data) > room[0]:
            raise OSError(28, "No space left on device")
        room[0] -= len(data)
        return real(file, data)

    monkeypatch.setattr(os, "write", limited)
    turns = [*(call("add", a=number) for number in range(15)), reply("done")]
    result = agent(turns, RecordHook(tmp_path)).run("Add")
    monkeypatch.undo()
    assert result.reply == "done"
    assert [error.message for error in result.errors] == [
        f"hook 'RecordHook' failed at on_run_end: RecordError: records cannot be written to {tmp_path}: "
        "No space left on device"
    ]
    (run,) = read(tmp_path)
    assert run.end is None
    assert at(run, "before_tool")


KILLED = """
    import os, signal, sys
    from hookline import Agent, ScriptedModel, call, reply, tool
    from hookline.records import RecordHook

    @tool(effects=[])
    def add(a: int) -> int:
        "Add."
        if a == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return a

    turns = [*(call("add", a=number) for number in range(5)), reply("done")]
    Agent("x", llm=ScriptedModel(turns), tools=[add], hooks=[RecordHook(sys.argv[1])]).run("Add")
"""


def test_a_killed_process_leaves_a_readable_record_with_the_call_that_was_in_progress(tmp_path):
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    (run,) = read(tmp_path)
    assert run.end is None
    assert [moment.payload.arguments["a"] for moment in at(run, "before_tool")] == [0, 1, 2, 3]
    assert [moment.payload.result for moment in at(run, "after_tool")] == [0, 1, 2]
    agent([reply("hi")], RecordHook(tmp_path)).run("Next")
    assert [each.info.task for each in read(tmp_path)] == ["Add", "Next"]


def test_two_processes_record_to_one_folder(tmp_path):
    program = textwrap.dedent(KILLED).replace("if a == 3:", "if False:")
    running = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path)]) for _ in range(2)]
    assert [process.wait() for process in running] == [0, 0]
    runs = read(tmp_path)
    assert [len(at(run, "before_tool")) for run in runs] == [5, 5]
    assert len({run.id for run in runs}) == 2


def test_a_torn_last_line_is_skipped_and_reported(tmp_path):
    recorded(tmp_path)
    (segment,) = tmp_path.glob("*.moments")
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-30])
    account = Account()
    (run,) = read_runs([tmp_path], account=account)
    assert account.skipped == {(str(segment), "the last line is incomplete"): 1}
    assert run.end is None
    assert len(run.moments) == 9


def test_tools_may_not_write_to_the_records(tmp_path):
    record = RecordHook(tmp_path / "records")
    assert protection_of(str(tmp_path / "records" / "any")) == "Hookline's records of runs"
    del record


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"points": "some"}, 'points must be "main", "all" or a list of points'),
        ({"points": ["before_tol"]}, "Did you mean 'before_tool'"),
        ({"points": 3}, 'points (besides "main" and "all") must be a list of names'),
        ({"points": []}, 'points (besides "main" and "all") must be a list of names'),
        ({"redact": 3}, "redact must be a function"),
        ({"redact": Redactor}, "redact must be a function"),
        ({"max_text": 0}, "max_text must be a whole number"),
        ({"max_size": "1 GB"}, "max_size must be a whole number"),
        ({"max_age": -1}, "max_age must be a number above 0"),
    ],
)
def test_invalid_options_are_rejected(tmp_path, options, message):
    with pytest.raises(RegistrationError) as raised:
        RecordHook(tmp_path, **options)
    assert message in str(raised.value)


def test_a_file_is_not_a_folder_for_records(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(RegistrationError, match="is a file: give RecordHook a folder"):
        RecordHook(tmp_path / "x")


def test_old_segments_are_deleted_by_the_hook(tmp_path):
    record = RecordHook(tmp_path, max_size=20_000)
    for number in range(30):
        agent([call("add", a=number), reply("ok")], record).run(f"Task {number}")
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.moments")) <= 20_000
    tasks = [run.info.task for run in read(tmp_path)]
    assert tasks[-1] == "Task 29"
    assert "Task 0" not in tasks


def test_a_replay_is_not_recorded(tmp_path):
    from hookline.tape import TapeHook, replay

    tape = tmp_path / "run.tape"
    agent([call("add", a=1), reply("three")], TapeHook(tape)).run("Add")
    record = RecordHook(tmp_path / "records")
    assert replay(tape, hooks=[record])
    assert read(tmp_path / "records") == [] if (tmp_path / "records").exists() else True


TURNS = st.lists(
    st.one_of(
        st.builds(lambda a: call("add", a=a), st.one_of(st.integers(-5, 5), st.text(max_size=3))),
        st.builds(lambda text: call("echo", text=text), st.text(max_size=8)),
        st.just(call("unknown")),
        st.builds(reply, st.text(min_size=1, max_size=10)),
    ),
    min_size=1,
    max_size=5,
)


class Rules:
    """Hooks with all kinds of decisions, depending on the payload only."""

    def __call__(self):
        @hook(BEFORE_TOOL)
        def change(ctx, request):
            return request.replace(arguments={**request.arguments, "b": 9}) if request.arguments.get("a") == 1 else None

        @guard(BEFORE_TOOL)
        def judge(ctx, request):
            if request.arguments.get("a") == 2:
                return HookResult.block("no twos")
            if request.arguments.get("a") == 3:
                return HookResult.answer("33")
            if request.arguments.get("a") == 4:
                return HookResult.ask("four?")
            return HookResult.stop("enough") if request.arguments.get("a") == 5 else None

        @hook(AFTER_LLM)
        def shout(ctx, answer):
            return answer.replace(content=answer.content.upper()) if len(answer.content) > 5 else None

        return [change, judge, shout]


def outcome(turns, *extra):
    events = []
    one = Agent(
        "x",
        llm=ScriptedModel([*turns, reply("end")]),
        tools=[add, echo],
        hooks=[*Rules()(), *extra],
        sinks=[events.append],
        limits=Limits(steps=8),
    )
    result = one.start("Go").wait()
    plain = [(type(event).__name__, getattr(event, "text", None), str(getattr(event, "verb", ""))) for event in events]
    told = [(error.type, error.message) for error in result.errors]
    return (result.status, result.reply, [(m.role, m.content) for m in result.messages], told), plain


@settings(max_examples=examples(40), deadline=None)
@given(turns=TURNS, points=st.sampled_from(["main", "all"]))
def test_a_recorded_run_equals_an_unrecorded_one_in_result_and_events(tmp_path_factory, turns, points):
    folder = tmp_path_factory.mktemp("records")
    result, events = outcome(turns)
    recorded_result, recorded_events = outcome(turns, RecordHook(folder, points=points))
    assert recorded_result == result
    extra = ("PointFired", "HookExecuted")
    assert [e for e in recorded_events if e[0] not in extra] == [e for e in events if e[0] not in extra]
    (run,) = read(folder)
    assert run.end.status == result[0]
    for line in content(folder).splitlines():
        json.loads(line)


def test_a_run_that_is_cancelled_is_recorded_to_its_end(tmp_path):
    started = []

    @tool(effects=[])
    async def wait() -> str:
        """Wait."""
        started.append(True)
        await asyncio.sleep(60)
        return "late"

    run = agent([call("wait"), reply("x")], RecordHook(tmp_path), tools=[wait]).start("Wait")
    block_until(lambda: started)
    assert b'"before_tool","wait"' in content(tmp_path)
    run.cancel()
    assert run.wait().status == "cancelled"
    (record,) = read(tmp_path)
    assert record.end.status == "cancelled"


@pytest.mark.parametrize("passes_ctx", [False, True])
def test_concurrent_nested_runs_name_the_calls_that_started_them(tmp_path, passes_ctx):
    inner = Agent("inner", llm=ScriptedModel([reply("one"), reply("two")]))

    @tool
    def ask(question: str, ctx) -> str:
        """Ask another agent, in a thread."""
        if passes_ctx:  # a thread of the tool itself has no context variables
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(lambda: inner.run(question, ctx=ctx).reply).result()
        return inner.run(question).reply

    both = ModelResponse("", (ToolCall("a", "ask", {"question": "a"}), ToolCall("b", "ask", {"question": "b"})))
    outer = Agent("outer", llm=ScriptedModel([both, reply("done")]), tools=[ask], record=tmp_path)
    outer.run("go")
    (run,) = read_runs(tmp_path)
    assert {nested.info.call_id: nested.info.task for nested in run.nested} == {"a": "a", "b": "b"}
    assert run.info.call_id == ""
