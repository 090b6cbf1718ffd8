"""The values that hooks may return, and the errors for those that cannot be used (DESIGN 3)."""

from types import MappingProxyType

import pytest

from hookline import (
    AFTER_LLM,
    AFTER_STEP,
    AFTER_TOOL,
    BEFORE_LLM,
    BEFORE_PROMPT_BUILD,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_ERROR,
    ON_RUN_END,
    ON_RUN_START,
    ON_STOP,
    ON_TOKEN,
    HookError,
    HookRegistry,
    HookResult,
    Message,
    ToolCallRequest,
)
from hookline._base.frozen import FrozenDict
from hookline._kernel.fire_observers import FireEvents, FireObservers
from hookline._kernel.scope import BaseContext, Scope
from hookline._kernel.values import STOP_KINDS
from hookline.errors import InvalidResultError
from hookline.hooks import HookAction
from hookline.models import ModelResponse
from hookline.payloads import AgentState, OutboundMessage, PromptParts, RunStart, ToolCall, Usage
from hookline.points import BEFORE_COMPACTION, POINTS
from hookline.testing import sample
from tests.cases import each_case

VERBS = {
    "cont": HookResult.cont,
    "replace": lambda **k: HookResult.replace({}, **k),
    "block": lambda **k: HookResult.block("no", **k),
    "answer": lambda **k: HookResult.answer("served", **k),
    "ask": lambda **k: HookResult.ask("may I?", **k),
    "retry": lambda **k: HookResult.retry("again", **k),
    "stop": lambda **k: HookResult.stop("enough", **k),
    "keep_going": lambda **k: HookResult.keep_going("more", **k),
    "end": lambda **k: HookResult.end("bye", **k),
}
PIPELINES = [p for p in POINTS.values() if p.model == "pipeline"]
OTHERS = [p for p in POINTS.values() if p.model != "pipeline"]
MODEL_FAILURE = {"where": "model"}


def payload_for(point):
    return sample(point, **(MODEL_FAILURE if point == ON_ERROR else {}))


async def fire(point, result, *, ctx=None, payload=None, **options):
    """One hook called 'judge' returns ``result``."""
    registry = HookRegistry()
    registry.on(point, lambda ctx, payload: result, name="judge", **options)
    return await registry.fire(point, payload if payload is not None else payload_for(POINTS[point]), ctx=ctx)


async def refused(point, result, **options):
    """The InvalidResultError that a hook called 'judge' causes."""
    with pytest.raises(HookError) as caught:
        await fire(point, result, **options)
    assert caught.value.hook == "judge"
    assert caught.value.point == point
    assert isinstance(caught.value.cause, InvalidResultError), caught.value.cause
    return str(caught.value)


@each_case("verb", VERBS)
@pytest.mark.parametrize("point", PIPELINES)
async def test_each_point_allows_exactly_its_verbs(point, verb):
    result = VERBS[verb]()
    if verb == "cont" or verb in point.verbs:
        assert (await fire(point, result)).action == verb
    else:
        message = await refused(point, result)
        assert f"hook 'judge' at {point}" in message
        assert f"allowed: {', '.join(sorted(point.verbs))}" in message


@each_case("verb", VERBS)
@pytest.mark.parametrize("point", PIPELINES)
async def test_a_guard_may_use_every_verb_but_replace(point, verb):
    result = VERBS[verb]()
    if verb == "cont" or verb in point.verbs - {"replace"}:
        assert (await fire(point, result, phase="guard")).action == verb
    else:
        assert f"allowed: {', '.join(sorted(point.verbs - {'replace'})) or 'nothing'}" in await refused(
            point, result, phase="guard"
        )


@each_case("verb", [v for v in VERBS if v != "cont"])
@pytest.mark.parametrize("point", OTHERS)
async def test_verbs_of_a_pipeline_are_rejected_elsewhere(point, verb):
    message = await refused(point, VERBS[verb](), on_failure="closed")
    assert f"hook 'judge' at {point}" in message
    assert f"allowed: {point.model if point.model != 'observe' else 'nothing'}" in message


@pytest.mark.parametrize("point", PIPELINES)
async def test_an_observer_may_not_decide(point):
    for result in (HookResult.stop("x"), {}, payload_for(point), True):
        await refused(point, result, phase="observe", on_failure="closed")
    assert (await fire(point, HookResult.cont(), phase="observe", on_failure="closed")).action == "cont"


@each_case("verb", VERBS)
@pytest.mark.parametrize("point", PIPELINES)
async def test_every_verb_takes_reason_and_state(point, verb):
    if verb not in point.verbs and verb != "cont":
        return
    ctx = BaseContext()
    result = VERBS[verb](reason="because", state=ctx.state.with_metadata(seen=True))
    assert result.reason == "because"
    verdict = await fire(point, result, ctx=ctx)
    assert verdict.action == verb
    assert ctx.state.metadata == {"seen": True}
    if verb != "cont":
        assert verdict.reason == "because"
        assert verdict.hook == "judge"


@pytest.mark.parametrize("point", PIPELINES)
@each_case("nonsense", [True, False, 3, "text", object(), [1], ("a",)])
async def test_a_bare_value_that_means_nothing_is_rejected_and_says_what_is_expected(point, nonsense):
    message = await refused(point, nonsense)
    assert f"hook 'judge' at {point} returned {type(nonsense).__name__}" in message
    assert f"expected None or a HookResult or a {point.payload.__name__}" in message


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        (BEFORE_PROMPT_BUILD, "a mapping of result fields"),
        ("inbound_claim", 'a mapping with "handled"'),
        ("on_progress", "nothing else"),
    ],
)
async def test_a_bare_true_is_rejected_at_every_model(point, expected):
    message = await refused(point, True, on_failure="closed")
    assert f"hook 'judge' at {point} returned bool (True); expected None or {expected}" in message


# Each verb


@pytest.mark.parametrize(
    ("point", "verb", "result", "value"),
    [
        (BEFORE_TOOL, "block", HookResult.block("no"), "no"),
        (BEFORE_TOOL, "end", HookResult.end("bye"), "bye"),
        (AFTER_LLM, "retry", HookResult.retry("shorter"), "shorter"),
        (ON_STOP, "keep_going", HookResult.keep_going("go on"), "go on"),
        (ON_RUN_START, "end", HookResult.end(), ""),
        (BEFORE_COMPACTION, "block", HookResult.block("no"), "no"),
    ],
)
async def test_the_verdict_holds_the_verb_its_value_and_its_hook(point, verb, result, value):
    verdict = await fire(point, result)
    assert (verdict.action, verdict.value, verdict.hook) == (verb, value, "judge")


async def test_none_and_cont_let_the_payload_pass():
    for result in (None, HookResult.cont(), HookResult()):
        verdict = await fire(ON_RUN_START, result, payload=RunStart("hi"))
        assert verdict.payload == RunStart("hi")
        assert verdict.action is HookAction.CONT


@pytest.mark.parametrize(
    "result",
    [
        RunStart("new"),
        {"task": "new"},
        MappingProxyType({"task": "new"}),
        dict(RunStart("new")),
        HookResult.replace(RunStart("new")),
        HookResult.replace({"task": "new"}),
    ],
)
async def test_replace_takes_a_payload_or_a_mapping_of_fields(result):
    verdict = await fire(ON_RUN_START, result, payload=RunStart("old"))
    assert verdict.payload == RunStart("new")
    assert (verdict.action, verdict.hook) == ("replace", "judge")


@pytest.mark.parametrize(
    ("point", "result", "message"),
    [
        (ON_RUN_START, HookResult.replace("text"), "str is not a RunStart"),
        (ON_RUN_START, HookResult.replace(ToolCallRequest("1", "t")), "ToolCallRequest is not a RunStart"),
        (ON_RUN_START, {"tsak": "new"}, "RunStart has no field 'tsak'. Did you mean 'task'?"),
        (ON_RUN_START, {"task": 3}, "RunStart.task: Expected `str`, got `int`"),
        (BEFORE_TOOL, {"id": "other"}, "a hook may not change id"),
        (BEFORE_TOOL, {"arguments": [1]}, "ToolCallRequest.arguments"),
        (BEFORE_TOOL, {"arguments": {"a": object()}}, "object is not JSON"),
        (BEFORE_LLM, {"hop": 7}, "a hook may not change hop"),
        (AFTER_TOOL, {"outcome": "blocked"}, "a hook may not change outcome"),
        (ON_TOKEN, {"final": True}, "a hook may not change final"),
        (ON_RUN_END, {"status": "failed"}, "a hook may not change status"),
        (ON_RUN_END, {"ids": {"run_id": "x"}}, "a hook may not change ids"),
        (BEFORE_COMPACTION, {"messages": ["x"]}, "Compaction.messages"),
    ],
)
async def test_a_replacement_that_does_not_match_is_rejected(point, result, message):
    assert message in await refused(point, result)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"params": 3}, "ModelRequest.params: Expected `object`, got `int`"),
        ({"params": {1: 2}}, "ModelRequest.params: Expected `str`, got `int`"),
        ({"messages": [Message("user", "x"), 3]}, "ModelRequest.messages[1]: Expected `object`, got `int`"),
    ],
)
async def test_a_replacement_of_the_wrong_type_is_rejected_with_its_path(result, message):
    assert (await refused(BEFORE_LLM, result)).endswith(message)


@pytest.mark.parametrize("verb", ["block", "ask", "retry", "stop", "keep_going", "end"])
@pytest.mark.parametrize("bad", [None, 3, b"x", ["no"]])
def test_verbs_with_text_refuse_anything_else_at_once(verb, bad):
    with pytest.raises(InvalidResultError, match=f"HookResult.{verb}: expected text, got {type(bad).__name__}"):
        getattr(HookResult, verb)(bad)


@pytest.mark.parametrize("kind", STOP_KINDS)
async def test_stop_records_a_signal_of_its_kind(kind):
    verdict = await fire(BEFORE_STEP, HookResult.stop("enough", kind=kind))
    (signal,) = verdict.signals
    assert (signal.kind, signal.message, signal.hook) == (kind, "enough", "judge")


def test_stop_takes_only_the_kinds_of_the_design():
    assert HookResult.stop().kind == "stop_requested"
    with pytest.raises(InvalidResultError, match="stop kind 'tired': expected one of error, halted, stop_requested"):
        HookResult.stop("x", kind="tired")
    assert STOP_KINDS == (
        "error",
        "halted",
        "stop_requested",
        "user_requested",
        "steps_limit",
        "token_limit",
        "time_limit",
        "cost_limit",
        "tool_calls_limit",
        "retry_limit",
        "finish_reason",
        "completed",
        "unknown",
    )


@pytest.mark.parametrize("value", ["text", 3, None, {"a": [1]}, [1, 2]])
async def test_a_tool_is_answered_with_any_json(value):
    verdict = await fire(BEFORE_TOOL, HookResult.answer(value, reason="cached"))
    assert (verdict.answer.value, verdict.answer.hook, verdict.answer.reason) == (value, "judge", "cached")


async def test_an_answer_is_a_frozen_copy():
    value = {"a": [1]}
    verdict = await fire(BEFORE_TOOL, HookResult.answer(value))
    value["a"].append(2)
    assert verdict.answer.value == {"a": [1]}
    with pytest.raises(TypeError):
        verdict.answer.value["a"].append(2)


async def test_a_tool_cannot_be_answered_with_what_is_not_json():
    assert "object is not JSON" in await refused(BEFORE_TOOL, HookResult.answer(object()))


@pytest.mark.parametrize("point", [BEFORE_LLM, ON_ERROR])
@pytest.mark.parametrize(
    ("value", "response"),
    [
        ("hello", ModelResponse("hello")),
        (ModelResponse("hello", usage=Usage(1, 2)), ModelResponse("hello", usage=Usage(1, 2))),
        ({"content": "hello"}, ModelResponse("hello")),
        (
            {"tool_calls": [{"id": "1", "name": "t", "arguments": {"a": 1}}]},
            ModelResponse(tool_calls=(ToolCall("1", "t", {"a": 1}),)),
        ),
    ],
)
async def test_a_model_is_answered_with_text_a_response_or_its_fields(point, value, response):
    assert (await fire(point, HookResult.answer(value))).answer.value == response


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "a ModelResponse, not int"),
        (None, "a ModelResponse, not NoneType"),
        ({"contents": "x"}, "ModelResponse has no field 'contents'"),
        ({"content": 3}, "Expected `str`, got `int`"),
    ],
)
async def test_a_model_cannot_be_answered_with_anything_else(value, message):
    assert message in await refused(BEFORE_LLM, HookResult.answer(value))


@pytest.mark.parametrize("verb", ["retry", "answer", "end"])
@pytest.mark.parametrize("where", ["tool", "hook"])
async def test_only_model_failures_take_a_verb_at_on_error(verb, where):
    message = await refused(ON_ERROR, VERBS[verb](), payload=sample(ON_ERROR, where=where))
    assert f"only for model failures, not for where='{where}'" in message
    assert (await fire(ON_ERROR, HookResult.cont(), payload=sample(ON_ERROR, where=where))).action == "cont"


# Every verb, said


def test_every_verb_contains_exactly_its_arguments():
    said = {
        HookResult.cont(): ("cont", None),
        HookResult.replace(1): ("replace", 1),
        HookResult.block(): ("block", ""),
        HookResult.block("no"): ("block", "no"),
        HookResult.answer(1): ("answer", 1),
        HookResult.ask("?"): ("ask", "?"),
        HookResult.retry(): ("retry", ""),
        HookResult.retry("n"): ("retry", "n"),
        HookResult.keep_going(): ("keep_going", ""),
        HookResult.keep_going("n"): ("keep_going", "n"),
        HookResult.end(): ("end", ""),
        HookResult.end("bye"): ("end", "bye"),
    }
    for result, (action, value) in said.items():
        assert (result.action, result.value, result.reason, result.state, result.kind) == (action, value, "", None, "")
    bare, full = HookResult.stop(), HookResult.stop("m", "cost_limit")
    assert (bare.action, bare.value, bare.reason, bare.state, bare.kind) == ("stop", "", "", None, "stop_requested")
    assert (full.value, full.kind) == ("m", "cost_limit")


def test_every_verb_keeps_its_reason_and_state():
    state = AgentState(system_prompt="other")
    for say in (*VERBS.values(), HookResult.merge, HookResult.claim):
        result = say(reason="because", state=state)
        assert (result.reason, result.state) == ("because", state)


def test_handlers_give_their_fields_and_approvers_one_of_three():
    for say, action in ((HookResult.merge, "merge"), (HookResult.claim, "claim")):
        result = say(a=1, b=None)
        assert (result.action, result.value, result.reason, result.state) == (action, {"a": 1, "b": None}, "", None)
    for result, fields in (
        (HookResult.approve(), {"approve": True, "by": ""}),
        (HookResult.approve(by="ann"), {"approve": True, "by": "ann"}),
        (HookResult.deny(), {"deny": "", "by": ""}),
        (HookResult.deny("no", by="ann"), {"deny": "no", "by": "ann"}),
        (HookResult.edit({"a": 1}), {"edit": {"a": 1}, "by": ""}),
        (HookResult.edit(MappingProxyType({}), by="ann"), {"edit": {}, "by": "ann"}),
    ):
        assert (result.action, result.value, result.reason) == ("claim", fields, "")


def test_the_members_of_hook_action_are_named_like_their_verbs():
    assert [action.name for action in HookAction] == [action.value.upper() for action in HookAction]


def test_edgevox_names_of_actions_are_second_names_of_ours():
    for edgevox, ours in (("CONTINUE", "CONT"), ("MODIFY", "REPLACE"), ("END_TURN", "END")):
        assert HookAction[edgevox] is HookAction[ours]
    assert not {"CONTINUE", "MODIFY", "END_TURN"} & {action.name for action in HookAction}


def test_a_verb_may_be_given_by_its_name_and_must_exist():
    result = HookResult("block", "no")
    assert result.action is HookAction.BLOCK
    assert result == HookResult.block("no")
    with pytest.raises(InvalidResultError, match=r"'blok' is not a verb; use a method such as HookResult.block"):
        HookResult("blok", "no")
    with pytest.raises(InvalidResultError, match="HookResult.ask: expected text, got int"):
        HookResult.ask(3)
    with pytest.raises(InvalidResultError, match="stop kind 'tired': expected one of error, halted, stop_requested"):
        HookResult.stop("m", "tired")


@pytest.mark.parametrize(
    ("point", "result"),
    [
        (BEFORE_TOOL, lambda state: HookResult.replace({"name": "b"}, reason="r", state=state)),
        (BEFORE_TOOL, lambda state: HookResult.answer(1, reason="r", state=state)),
        (BEFORE_TOOL, lambda state: HookResult.cont(reason="r", state=state)),
    ],
)
async def test_a_verb_that_is_checked_keeps_its_reason_and_state(point, result):
    reasons = []
    ctx = BaseContext()
    scope = ctx._scope = Scope(ctx)
    scope.fire_observers = FireObservers(FireEvents(lambda kind, /, **fields: reasons.append(fields["reason"])))
    await fire(point, result(scope.state.with_metadata(seen=1)), ctx=ctx)
    assert scope.state.metadata == {"seen": 1}
    assert reasons == ["r"]


async def test_an_answer_and_a_claim_keep_their_reason():
    assert (await fire(BEFORE_TOOL, HookResult.answer(1, reason="cached"))).reason == "cached"
    assert (await fire("inbound_claim", HookResult.claim(reason="mine"))).reason == "mine"
    assert (await fire("inbound_claim", {"handled": True, "reason": "mine"})).reason == "mine"
    assert (await fire("inbound_claim", {"handled": True, "reason": 3})).reason == ""


async def test_a_claim_may_hold_nothing_and_a_merge_may_not():
    assert (await fire("inbound_claim", HookResult.claim(by=None))).value == {"by": None}
    assert (await fire(BEFORE_PROMPT_BUILD, HookResult.merge(append_system=None, prepend_system="x"))).value == (
        PromptParts(prepend_system="x")
    )


async def test_a_refused_result_names_hook_point_and_what_is_allowed():
    assert await refused(BEFORE_STEP, HookResult.block("no")) == (
        "hook 'judge' failed at before_step: InvalidResultError: hook 'judge' at before_step: 'block' is not allowed "
        "here; allowed: end, stop"
    )
    message = await refused(BEFORE_TOOL, HookResult.end("x"), phase="observe", on_failure="closed")
    assert "'end' is not allowed here; allowed: nothing" in message
    message = await refused(BEFORE_TOOL, HookResult.replace({}), phase="guard")
    assert "'replace' is not allowed here; allowed: answer, ask, block, end, stop" in message
    message = await refused(ON_ERROR, HookResult.retry(), payload=sample(ON_ERROR, where="tool"))
    assert "hook 'judge' at on_error: 'retry' is only for model failures" in message
    message = await refused(BEFORE_TOOL, "x" * 200)
    assert "hook 'judge' at before_tool returned str ('" + "x" * 79 + "); expected None or a HookResult or a" in message
    assert "ToolCallRequest" in message
    assert "expected None or nothing else" in await refused("on_progress", 3, on_failure="closed")


# Ethos


@pytest.mark.parametrize(
    ("result", "action", "outcome"),
    [
        ({"args": {"path": "b"}}, "replace", {"path": "b"}),
        ({"args": {"path": "b"}, "error": None}, "replace", {"path": "b"}),
        ({"error": "forbidden"}, "block", "forbidden"),
        ({"error": "forbidden", "args": {"path": "b"}}, "block", "forbidden"),
        ({"error": None}, "cont", None),
        ({"args": None, "error": None}, "cont", None),
    ],
)
async def test_ethos_results_mean_replace_and_block(result, action, outcome):
    verdict = await fire(BEFORE_TOOL, result, payload=ToolCallRequest("1", "read", {"path": "a"}))
    assert verdict.action == action
    if action == "block":
        assert verdict.value == outcome
    else:
        assert verdict.payload.arguments == (outcome or {"path": "a"})


@pytest.mark.parametrize("result", [{"args": "text"}, {"args": [1]}, {"error": 5}])
async def test_ethos_results_of_the_wrong_type_are_rejected(result):
    await refused(BEFORE_TOOL, result)


async def test_ethos_results_mean_nothing_at_other_points():
    assert "no field 'args'" in await refused(AFTER_TOOL, {"args": {}})


# Merge and claim


@pytest.mark.parametrize(
    "result", [{"prepend_system": "x"}, HookResult.merge(prepend_system="x"), MappingProxyType({"prepend_system": "x"})]
)
async def test_a_merge_handler_gives_a_mapping_or_merge(result):
    verdict = await fire(BEFORE_PROMPT_BUILD, result)
    assert (verdict.action, verdict.hook) == ("merge", "judge")
    assert verdict.value == PromptParts(prepend_system="x")


async def test_merged_fields_become_typed_values():
    verdict = await fire("message_sending", {"message": {"text": "hi"}})
    assert verdict.value.message == OutboundMessage("hi")


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"prepend_sytem": "x"}, "PromptParts has no field 'prepend_sytem'. Did you mean 'prepend_system'?"),
        ({"prepend_system": 3}, "PromptParts.prepend_system"),
        (HookResult.merge(nothing="x"), "PromptParts has no field 'nothing'"),
        (HookResult.claim(), "'claim' is not allowed here; allowed: merge"),
        ("text", "expected None or a mapping of result fields"),
    ],
)
async def test_a_merge_that_does_not_match_is_rejected(result, message):
    assert message in await refused(BEFORE_PROMPT_BUILD, result)


@pytest.mark.parametrize(
    "result",
    [{"handled": True, "by": "desk"}, HookResult.claim(by="desk"), MappingProxyType({"handled": True, "by": "desk"})],
)
async def test_a_claim_handler_gives_a_mapping_with_handled_or_claim(result):
    verdict = await fire("inbound_claim", result)
    assert verdict.handled
    assert (verdict.action, verdict.hook, verdict.value) == ("claim", "judge", {"by": "desk"})
    assert type(verdict.value) is FrozenDict


async def test_handled_false_is_no_claim():
    verdict = await fire("inbound_claim", {"handled": False, "by": "desk"})
    assert not verdict.handled
    assert verdict.action == "cont"


@pytest.mark.parametrize("result", [{}, {"by": "desk"}, {"handled": "yes"}, {"handled": 1}, HookResult.merge(a=1)])
async def test_a_claim_must_say_whether_it_is_handled(result):
    message = await refused("inbound_claim", result)
    assert 'a mapping with "handled"' in message or "allowed: claim" in message


@pytest.mark.parametrize(
    ("result", "fields"),
    [
        (HookResult.approve(by="ann"), {"approve": True, "by": "ann"}),
        (HookResult.deny("too risky"), {"deny": "too risky"}),
        (HookResult.deny(), {"deny": "Tool '' was denied by hook 'judge'."}),
        (HookResult.deny(" ", by="ann"), {"deny": "Tool '' was denied by ann."}),
        ({"handled": True, "deny": ""}, {"deny": "Tool '' was denied by hook 'judge'."}),
        (HookResult.edit({"path": ["b"]}), {"edit": {"path": ["b"]}}),
        ({"handled": True, "approve": True}, {"approve": True}),
        ({"handled": True, "deny": "no"}, {"deny": "no"}),
        ({"handled": True, "edit": {"a": 1}}, {"edit": {"a": 1}}),
    ],
)
async def test_an_approver_approves_denies_or_edits(result, fields):
    verdict = await fire("approval_requested", result)
    assert verdict.handled
    assert {name: getattr(verdict.value, name) for name in fields} == fields


@pytest.mark.parametrize(
    "result",
    [
        HookResult.claim(),
        HookResult.claim(approve=False),
        HookResult.claim(approve=True, deny="no"),
        HookResult.claim(deny="no", edit={}),
        HookResult.claim(approve=True, wait=True),
        {"handled": True},
    ],
)
async def test_an_approval_is_exactly_one_decision(result):
    message = await refused("approval_requested", result)
    assert message.endswith(
        ": an approval must be exactly one of approve=True, deny=message, edit=arguments, wait=True"
    )


async def test_an_approval_with_an_unknown_field_is_rejected():
    assert "no field 'aprove'" in await refused("approval_requested", {"handled": True, "aprove": True})


@pytest.mark.parametrize("reason", ["because", ""])
def test_approvals_take_a_reason(reason):
    for result in (
        HookResult.approve(reason=reason),
        HookResult.deny(reason=reason),
        HookResult.edit({}, reason=reason),
    ):
        assert result.reason == reason


# state=


async def test_a_state_that_may_not_change_is_rejected_with_hook_and_point():
    changed = AgentState(usage=Usage(1))
    message = await refused(ON_RUN_START, HookResult.cont(state=changed))
    assert "hook 'judge' at on_run_start: AgentState: a hook may not change usage" in message


@pytest.mark.parametrize("bad", ["text", 3, {"mesages": []}, {"metadata": 3}])
async def test_a_state_of_the_wrong_type_is_rejected(bad):
    await refused(ON_RUN_START, HookResult.cont(state=bad))


@pytest.mark.parametrize("junk", ["hi", {"content": "no role"}, None])
async def test_a_state_with_invalid_messages_is_rejected(junk):
    ctx, registry = BaseContext(), HookRegistry()
    registry.on(ON_RUN_START, lambda ctx, start: HookResult.cont(state=ctx.state.with_messages(junk)), name="judge")
    with pytest.raises(HookError, match=r"hook 'judge' failed at on_run_start: .*AgentState.messages"):
        await registry.fire(ON_RUN_START, {"task": "hi"}, ctx=ctx)
    assert len(ctx.state.messages) == 0


@each_case("point", OTHERS)
async def test_state_is_for_hooks_that_decide_at_a_pipeline_point(point):
    message = await refused(point, HookResult.cont(state=AgentState()), on_failure="closed")
    assert "only rewriters and guards at a pipeline point may return state=" in message


async def test_a_merge_or_claim_with_a_state_is_rejected():
    for point, result in (
        (BEFORE_PROMPT_BUILD, HookResult.merge(append_system="x", state=AgentState())),
        ("inbound_claim", HookResult.claim(by="x", state=AgentState())),
    ):
        assert "only rewriters and guards at a pipeline point may return state=" in await refused(point, result)


async def test_state_from_an_observer_is_rejected_and_not_applied():
    ctx = BaseContext()
    result = HookResult.cont(state=ctx.state.with_messages(Message("user", "hi")))
    await refused(ON_RUN_START, result, ctx=ctx, phase="observe", on_failure="closed")
    assert len(ctx.state.messages) == 0


async def test_a_refused_verb_leaves_the_state_alone():
    ctx = BaseContext()
    await refused(AFTER_STEP, HookResult.block("no", state=ctx.state.with_metadata(a=1)), ctx=ctx)
    assert ctx.state.metadata == {}


@pytest.mark.parametrize("result", [HookResult.block(), HookResult.block(" \n"), {"error": ""}])
async def test_a_block_without_a_message_names_the_tool_and_the_hook(result):
    verdict = await fire("before_tool", result, payload=ToolCallRequest("c", "add"))
    assert (verdict.action, verdict.value) == ("block", "Tool 'add' was blocked by hook 'judge'.")


async def test_a_block_without_a_message_elsewhere_names_the_hook():
    assert (await fire("before_compaction", HookResult.block())).value == "Compaction was blocked by hook 'judge'."


async def test_a_block_keeps_its_message_reason_and_state():
    for message in ("no", ""):
        ctx = BaseContext()
        reported = HookResult.block(message, reason="why", state=ctx.state.with_metadata(seen=True))
        verdict = await fire("before_tool", reported, ctx=ctx)
        assert verdict.reason == "why"
        assert ctx.state.metadata == {"seen": True}
    assert (await fire("before_tool", HookResult.block(" no "))).value == " no "
