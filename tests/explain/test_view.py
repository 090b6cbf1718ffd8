"""The view of a recorded run."""

import shutil
from base64 import b64encode
from itertools import pairwise

import msgspec
import pytest

from hookline import Agent, Attachment, HookResult, Limits, ScriptedModel, call, guard, hook, reply, tool
from hookline.explain import compare, find_run
from hookline.explain.view import ModelCall, RunView, ToolCallView, explain
from hookline.points import AFTER_LLM, BEFORE_LLM, BEFORE_TOOL
from hookline.records.hook import RecordHook
from hookline.records.reading import read_runs
from hookline.tape import TapeHook

from . import office


@pytest.fixture(scope="module")
def view(tmp_path_factory):
    return explain(office.recorded(tmp_path_factory.mktemp("records")))


def calls(view):
    return [item for step in view.steps for item in step.items if isinstance(item, ToolCallView)]


def moment(view, point, tool="", verb=""):
    return next(m for m in view.moments() if m.point == point and m.tool == tool and (not verb or verb in m.verbs))


def outcomes(view, moment):
    return {hook.name: hook.state for hook in view.hooks_at(moment)}


def run_of(folder, *hooks, turns, tools=(), **options):
    """Run an agent whose model gives these turns, and return the view of its record."""
    agent = Agent("test", llm=ScriptedModel(turns), tools=tools, hooks=[*hooks, RecordHook(folder)], **options)
    agent.run("Go on.")
    return explain(list(read_runs([folder]))[-1])


def test_the_header_has_the_task_the_usage_and_the_reason_for_the_end(view):
    assert (view.status, view.agent, view.model) == ("completed", "office", "scripted")
    assert view.task == office.TASK
    assert view.why == "The model replied without calling a tool."
    assert view.reply.startswith("The margin is 227,190.")
    assert view.input_tokens > 3 * 420
    assert view.tool_calls == 6
    assert view.events == len(list(view.moments())) == 44


def test_the_steps_have_their_model_calls_and_tool_calls(view):
    assert [step.index for step in view.steps] == [-1, 0, 1, 2, 3, 4, 5]
    shown = [[getattr(item, "tool", type(item).__name__) for item in step.items] for step in view.steps[1:6]]
    kinds = [[kind for kind in step if kind not in ("EventView",)] for step in shown]
    assert kinds == [
        ["ModelCall", "shell"],
        ["ModelCall", "read_file"],
        ["ModelCall", "rates", "delegate"],
        ["ModelCall", "shell"],
        ["ModelCall", "ModelCall", "send_mail"],
    ]
    model = view.steps[1].items[0]
    assert isinstance(model, ModelCall)
    assert (model.input_tokens, model.output_tokens, model.cost) == (420, 35, 0.0012)
    assert [call.attempt for call in view.steps[5].items if isinstance(call, ModelCall)] == [1, 2]


def test_each_point_shows_its_hooks_in_firing_order(view):
    asked = moment(view, "before_tool", "send_mail")
    assert [hook.name for hook in view.hooks_at(asked)] == [
        "sign",
        "no_deleting",
        "no_network",
        "ask_for_outside",
        "audit",
    ]
    assert outcomes(view, asked) == {
        "sign": "spoke",
        "no_deleting": "not selected",
        "no_network": "not selected",
        "ask_for_outside": "spoke",
        "audit": "passed",
    }


def test_a_guard_after_a_block_is_shown_as_skipped_and_observers_as_called(view):
    blocked = moment(view, "before_tool", "shell", "block")
    assert outcomes(view, blocked) == {
        "sign": "not selected",
        "no_deleting": "spoke",
        "no_network": "skipped",
        "ask_for_outside": "not selected",
        "audit": "passed",
    }
    decision = blocked.decisions[0]
    assert decision.reason == "rule 3: nothing is deleted"
    assert decision.value == "Deleting files is not allowed. Move them to trash/ instead."
    assert decision.took > 0


def test_the_difference_that_a_hook_made_is_shown_with_its_name(view):
    changed = moment(view, "after_tool", "read_file", "replace").decisions[0]
    assert (changed.hook, changed.reason) == ("hide_cards", "1 card number")
    assert [change.field for change in changed.changes] == ["result"]
    assert ("-", "4111-1111-1111-1111") in changed.changes[0].parts
    assert ("+", "[card number]") in changed.changes[0].parts


def test_arguments_are_compared_one_by_one(view):
    signed = moment(view, "before_tool", "send_mail").decisions[0]
    assert [change.field for change in signed.changes] == ["arguments.body"]
    assert signed.changes[0].parts[-1] == ("+", "\n\nSent by an assistant.")


def test_messages_are_compared_one_by_one(view):
    added = moment(view, "before_llm", verb="replace").decisions[0]
    assert [(change.field, change.parts) for change in added.changes] == [
        ("message 1 (system), added", [("+", "Today is Monday.")])
    ]


def test_a_request_shows_only_its_new_messages(view):
    second = view.steps[2].items[0]
    assert isinstance(second, ModelCall)
    assert (second.kept, [message.role for message in second.messages]) == (1, ["assistant", "tool"])
    assert [message.known for message in second.messages] == [True, True]


def test_an_approval_shows_the_question_and_who_decided(view):
    mail = calls(view)[-1]
    assert mail.questions == ["A mail to cfo@partner.example, who is not one of us. Send it?"]
    assert (mail.decision, mail.decided_by) == ("approved", "ann")


def test_a_failed_hook_is_shown_where_it_failed(view):
    failed = moment(view, "after_tool", "rates").decisions[0]
    assert (failed.hook, failed.verb) == ("shaky", "failed")
    assert "KeyError: 'eur'" in failed.error
    assert outcomes(view, moment(view, "after_tool", "rates"))["team"] == "passed"  # it fails open


def test_a_nested_run_is_inside_the_call_that_started_it(view):
    delegate = next(call for call in calls(view) if call.tool == "delegate")
    assert [(run.agent, run.status, run.reply) for run in delegate.runs] == [
        ("researcher", "completed", "Invoices 17 and 23 are disputed.")
    ]
    assert [(run.agent, depth) for run, _, depth in view.all_steps()].count(("researcher", 1)) == 3
    blocked = [call for call in calls(delegate.runs[0]) if call.outcome == "blocked"]
    assert [call.tool for call in blocked] == ["shell"]


def test_a_record_that_was_cut_off_says_so(tmp_path):
    office.agent(tmp_path).run(office.TASK)
    (file,) = tmp_path.glob("*.moments")
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:12]))
    view = explain(next(read_runs([tmp_path])))
    assert view.status == "interrupted"
    assert view.why == "The record ends before the run does: the program was stopped, or is still running."
    assert view.input_tokens == 840
    assert view.elapsed > 0


@tool
def look(where: str = "here") -> str:
    """Look."""
    return "nothing"


@hook(BEFORE_LLM)
def ends(ctx, request):
    return HookResult.end("Enough.", reason="out of hours")


@hook(AFTER_LLM)
def stops(ctx, reply):
    return HookResult.stop("Too late.")


@hook(BEFORE_TOOL)
def breaks(ctx, request):
    raise ValueError("no rules")


@pytest.mark.parametrize(
    ("hooks", "turns", "options", "status", "why"),
    [
        ([ends], [reply("x")], {}, "ended", "The hook ends ended the run at before_llm: out of hours."),
        ([stops], [call("look")], {}, "stopped", "The hook stops asked the run to stop at after_llm: Too late."),
        ([], [call("look")] * 5, {"limits": Limits(steps=2)}, "stopped", "The run reached its limit of steps: 2/2."),
        ([], [reply("")], {}, "stopped", "The model returned neither text nor tool calls."),
        ([breaks], [call("look")], {}, "failed", "The hook breaks failed at before_tool: hook 'breaks' failed"),
    ],
)
def test_the_end_of_a_run_is_explained_in_words(tmp_path, hooks, turns, options, status, why):
    from hookline import RunFailedError

    try:
        view = run_of(tmp_path, *hooks, turns=turns, tools=[look], **options)
    except RunFailedError:
        view = explain(next(read_runs([tmp_path])))
    assert (view.status, view.why[: len(why)]) == (status, why)


def test_a_run_whose_model_fails_says_why_and_has_all_fields_in_json(tmp_path):
    from hookline import RunFailedError

    with pytest.raises(RunFailedError):
        run_of(tmp_path, turns=[ConnectionError("no network")], tools=[look])
    view = explain(next(read_runs([tmp_path])))
    assert view.why == "It failed: ConnectionError: no network"
    empty = msgspec.to_builtins(RunView("run_1"))
    assert (empty["status"], empty["cost"], empty["steps"]) == ("interrupted", None, [])


def test_a_change_of_the_state_is_shown(tmp_path):
    @hook(BEFORE_TOOL)
    def remember(ctx, request):
        return HookResult.cont(state=ctx.state.replace(metadata={"seen": request.name}))

    view = run_of(tmp_path, remember, turns=[call("look"), reply("done")], tools=[look])
    decision = moment(view, "before_tool", "look").decisions[0]
    assert [(change.field, change.parts) for change in decision.state] == [("metadata", [("+", '{"seen":"look"}')])]


def test_validation_that_changes_arguments_is_shown(tmp_path):
    @tool
    def count(number: int, unit: str = "m") -> int:
        """Count."""
        return number

    @guard(BEFORE_TOOL)
    def small(ctx, request):
        return None

    view = run_of(tmp_path / "a", small, turns=[call("count", number="7"), reply("done")], tools=[count])
    checked = moment(view, "before_tool", "count").checked
    assert [(change.field, change.parts) for change in checked] == [
        ("arguments.number", [("-", '"7"'), ("+", "7")]),
        ("arguments.unit", [("+", "m")]),
    ]
    view = run_of(tmp_path / "b", small, turns=[call("count", number="seven"), reply("done")], tools=[count])
    invalid = moment(view, "before_tool", "count")
    assert (invalid.verdict, outcomes(view, invalid)) == ("invalid", {"small": "skipped"})
    assert invalid.verbs == ["invalid"]


def test_texts_are_cut_at_the_limit(tmp_path):
    run = office.recorded(tmp_path)
    view = explain(run, limit=50)
    result = calls(view)[1].result
    assert result.startswith("Ledger 2026")
    assert "more characters)" in result
    assert len(result) < 90


def test_labels_belong_to_their_call(tmp_path):
    office.agent(tmp_path).run(office.TASK)
    (file,) = tmp_path.glob("*.moments")
    label = ["label", "shell", 0, -1, {"label": "bad", "call_id": "call_0_0", "by": "ben", "note": "no need"}]
    end = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*end[:-1], msgspec.json.encode(label) + b"\n", end[-1]]))
    view = explain(next(read_runs([tmp_path])))
    assert calls(view)[0].labels == ["bad by ben: no need"]


def test_a_record_with_other_types_than_expected_is_shown_nevertheless(tmp_path):
    """A record may be damaged, or imported."""
    lines = [["hookline", {"format": 1}], ["run", 0, {"task": "odd"}]]
    odd = {"hop": "x", "id": 3, "arguments": [1], "messages": 5, "tool_calls": "a", "usage": 7, "errors": {}}
    points = ("before_llm", "after_llm", "before_tool", "after_tool", "on_error", "approval_decided", "on_stop", "mine")
    for payload in ({}, odd):
        lines += [[point, "t", 0, n, 0.1 * n, 0.0, payload] for n, point in enumerate(points)]
    file = tmp_path / "odd.moments"
    file.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    view = explain(next(read_runs([file])))
    assert view.status == "interrupted"
    assert view.events >= 14


def test_hooks_that_the_record_does_not_list_are_shown_with_their_decisions(tmp_path):
    lines = [
        ["hookline", {"format": 1}],
        ["run", 0, {"task": "imported"}],
        ["before_tool", "x", 0, 0, 0.0, 0.0, {"id": "1", "name": "x"}, [["rule", "guard", "block"]], ["block", "rule"]],
    ]
    file = tmp_path / "a.moments"
    file.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    view = explain(next(read_runs([file])))
    assert outcomes(view, next(view.moments())) == {"rule": "spoke"}


def test_the_requests_of_a_long_run_share_their_messages(tmp_path):
    """Otherwise the memory for reading a run would grow with the square of its length."""
    lines = [["hookline", {"format": 1}], ["run", 0, {"task": "long"}]]
    for step in range(50):
        new = {"messages": [{"role": "user", "content": f"message {step}"}], "hop": step}
        lines.append(["before_llm", "", 0, step, 0.1, 0.0, new, None, None, {"kept": step}])
    file = tmp_path / "long.moments"
    file.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    requests = [moment.payload for moment in next(read_runs([file])).moments]
    assert [message.content for message in requests[-1].messages] == [f"message {n}" for n in range(50)]
    for earlier, later in pairwise(requests[1:]):
        assert [message.content for message in later.messages.tail_after(earlier.messages)] == [
            later.messages[-1].content
        ]


def test_concurrent_subagents_are_inside_their_own_calls(tmp_path):
    batch = [call("delegate", to="researcher", task=f"Look at part {n}.") for n in (1, 2)]
    view = explain(office.recorded(tmp_path, script=[batch, reply("Done.")]))
    started = [[run.task for run in call.runs] for call in calls(view)]
    assert started == [["Look at part 1."], ["Look at part 2."]]


def test_a_tape_is_explained_like_a_record(tmp_path):
    tape = tmp_path / "office.tape"
    office.agent(tmp_path / "records", hooks=[*office.HOOKS, TapeHook(tape)]).run(office.TASK)
    taped, recorded = (explain(find_run(name, [tmp_path / "records"]).run) for name in (str(tape), "last"))
    assert taped.events > recorded.events  # a tape contains all points
    found = compare(taped, recorded)
    assert [(pair.left, pair.right) for pair in found.pairs if not pair.same] == []


def test_an_answer_in_place_of_the_model_is_shown_as_its_text(tmp_path):
    @hook(BEFORE_LLM)
    def canned(ctx, request):
        return HookResult.answer("No model is needed.")

    shown = run_of(tmp_path, canned, turns=[])
    assert moment(shown, BEFORE_LLM, verb="answer").decisions[0].value == "No model is needed."


def test_changed_tools_are_shown_by_name_and_without_their_schemas(tmp_path):
    @tool
    def status(service: str) -> str:
        """Tell the status."""
        return "fine"

    @tool
    def deploy(service: str) -> str:
        """Deploy."""
        return "done"

    @hook(BEFORE_LLM)
    def only_status(ctx, request):
        [first, _] = request.tools
        return request.replace(tools=(msgspec.structs.replace(first, description="Tell."),))

    shown = run_of(tmp_path, only_status, turns=["Done."], tools=[status, deploy])
    names, description = moment(shown, BEFORE_LLM).decisions[0].changes
    assert (names.field, names.parts) == ("tools", [("=", "status"), ("-", ", deploy")])
    assert (description.field, description.parts) == (
        "tools.status.description",
        [("=", "Tell"), ("-", " the status"), ("=", ".")],
    )


def test_attachments_are_shown_by_name_type_and_size_and_not_by_content(tmp_path):
    photo = Attachment.of(b"\x89PNG\r\n\x1a\npixels", name="photo.png")

    @tool(effects=[])
    def show() -> list[object]:
        """Show a picture."""
        return ["A chart:", photo]

    agent = Agent("test", llm=ScriptedModel([call("show"), "x"]), tools=[show], hooks=[RecordHook(tmp_path)])
    agent.run("Look.", attachments=[photo])
    view = explain(list(read_runs([tmp_path]))[-1])
    line = f"[attached: photo.png, image/png, 14 bytes, SHA-256 {photo.digest[:12]}]"
    (shown,) = calls(view)
    assert shown.result == f"A chart:\nAttached: photo.png (image/png, 14 bytes)\n{line}"
    asked = next(item for step in view.steps for item in step.items if isinstance(item, ModelCall))
    assert asked.messages[0].text == f"Look.\n{line}"
    assert b"pixels" not in msgspec.json.encode(view)


def test_small_images_of_a_tape_are_in_the_view_if_they_are_unchanged(tmp_path):
    def png(size):
        return Attachment.of(b"\x89PNG\r\n\x1a\n" + bytes(size), name=f"{size}.png")

    small, large, forged = png(10), png(200_000), png(20)
    text = Attachment.of(b"words", name="a.txt")
    path = tmp_path / "run.tape"
    agent = Agent("test", llm=ScriptedModel(["x"]), hooks=[TapeHook(path)])
    agent.run("Look.", attachments=[small, large, forged, text])
    (tmp_path / "run.tape.attachments" / forged.digest).write_bytes(png(30).data)
    (view,) = map(explain, read_runs([path]))
    encoded = b64encode(small.data).decode()
    assert view.images == {small.digest[:12]: f"data:image/png;base64,{encoded}"}
    shutil.rmtree(tmp_path / "run.tape.attachments")
    (view,) = map(explain, read_runs([path]))
    assert view.images == {}
