"""The verbs of a hook and the fields that it changes, from its declaration or its code, and what its code mentions."""

import time

import msgspec
import pytest

from hookline import HookResult, ModelRequest, guard, hook
from hookline._kernel.hook_code import changes_of, code_of, mentions, verbs_of
from hookline.payloads import ToolSpec
from hookline.points import AFTER_LLM, APPROVAL_REQUESTED, BEFORE_LLM, BEFORE_TOOL, POINTS


@guard(BEFORE_TOOL)
def blocks_or_asks(ctx, request):
    if request.arguments:
        return HookResult.block("No.")
    return HookResult.ask("May it run?")


@hook(APPROVAL_REQUESTED)
def approves(ctx, asked):
    return HookResult.approve()


def refuse():
    return HookResult.block("No.")


@guard(BEFORE_TOOL)
def calls_a_function(ctx, request):
    return refuse()


class Both:
    points = (BEFORE_TOOL, AFTER_LLM)

    def __call__(self, point, ctx, payload):
        return self.judge(point)

    def judge(self, point):
        return HookResult.block("No.") if point == BEFORE_TOOL else HookResult.retry("Again.")


class Inherits(Both):
    pass


@pytest.mark.parametrize(
    ("given", "point", "verbs"),
    [
        (blocks_or_asks, BEFORE_TOOL, {"block", "ask"}),
        (approves, APPROVAL_REQUESTED, {"claim"}),
        (calls_a_function, BEFORE_TOOL, {"block"}),
        (Both(), BEFORE_TOOL, {"block"}),
        (Both(), AFTER_LLM, {"retry"}),
        (Inherits(), AFTER_LLM, {"retry"}),
        (hook(BEFORE_TOOL)(lambda ctx, request: HookResult.answer(1)), BEFORE_TOOL, {"answer"}),
        (hook(BEFORE_TOOL)(lambda ctx, request: None), BEFORE_TOOL, set()),
    ],
)
def test_the_code_of_a_hook_shows_its_verbs(given, point, verbs):
    assert verbs_of(given, point) == verbs


@pytest.mark.parametrize("declared", [("retry",), ["retry"], {"retry"}, {AFTER_LLM: ("retry",), BEFORE_TOOL: ("ask",)}])
def test_a_hook_may_declare_its_verbs(declared):
    both = Both()
    both.verbs = declared
    assert verbs_of(both, AFTER_LLM) == {"retry"}


def test_a_point_without_a_declaration_has_no_verbs_if_another_has_one():
    both = Both()
    both.verbs = {AFTER_LLM: ("retry",)}
    assert verbs_of(both, BEFORE_TOOL) == set()


def change_the_model(request):
    return request.replace(model="large")


class ChangesState:
    points = (BEFORE_LLM,)

    def __call__(self, point, ctx, request):
        return HookResult.cont(state=self.changed(ctx.state))

    def changed(self, state):
        return state.replace(response_format={"type": "object"})


@hook(BEFORE_LLM)
def returns_a_mapping(ctx, request):
    return {"model": "large", "params": {}}


@hook(BEFORE_LLM)
def replaces_by_a_mapping(ctx, request):
    return HookResult.replace({"model": "large" if request.params else "small"})


@hook(BEFORE_LLM)
def replaces_by_a_function(ctx, request):
    return msgspec.structs.replace(request, model="large")


@hook(BEFORE_LLM)
def calls_a_function_that_replaces(ctx, request):
    return change_the_model(request)


@hook(BEFORE_LLM)
def adds_a_tool(ctx, request):
    return request.replace(tools=(*request.tools, ToolSpec("mine")))


@hook(BEFORE_LLM)
def adds_tools(ctx, request):
    return request.replace(tools=request.tools + (ToolSpec("mine"),))


@hook(BEFORE_LLM)
def withdraws_tools(ctx, request):
    return request.replace(tools=[tool for tool in request.tools if tool.name != "shell"])


@hook(BEFORE_LLM)
async def asks_with_a_format(ctx, request):
    await ctx.llm.complete("Is it safe?", response_format={"type": "object"})
    return request.replace(messages=ModelRequest(request.messages, model="large").messages)


@hook(BEFORE_LLM)
def changes_other_objects(ctx, request):
    return [tool.replace(model="large") for tool in request.tools][0].replace(model="large")


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        (returns_a_mapping, {"model", "params"}),
        (replaces_by_a_mapping, {"model"}),
        (replaces_by_a_function, {"model"}),
        (calls_a_function_that_replaces, {"model"}),
        (hook(BEFORE_LLM)(lambda ctx, request: request.replace(model="large")), {"model"}),
        (ChangesState(), {"response_format"}),
        (adds_a_tool, {"tools"}),
        (adds_tools, {"tools"}),
        (withdraws_tools, set()),
        (asks_with_a_format, {"messages"}),
        (changes_other_objects, set()),
    ],
)
def test_the_code_of_a_hook_shows_the_fields_that_it_changes(given, fields):
    assert changes_of(given, BEFORE_LLM) == fields


def test_a_hook_may_declare_the_fields_that_it_changes():
    declaring = ChangesState()
    declaring.changes = {BEFORE_LLM: ["model"]}
    assert changes_of(declaring, BEFORE_LLM) == {"model"}
    assert changes_of(declaring, AFTER_LLM) == set()


def test_code_without_source_shows_no_changes():
    scope = {}
    exec("def change(ctx, request):\n    return request.replace(model='large')", scope)
    assert changes_of(hook(BEFORE_LLM)(scope["change"]), BEFORE_LLM) == set()


def test_a_hook_that_is_not_written_in_python_shows_nothing():
    assert code_of(max) is None
    assert verbs_of(max, POINTS["before_tool"]) == set()


def test_a_module_that_a_function_imports_is_known_in_it():
    def now(ctx, request):
        import time

        return time.time()

    assert (time, "time") in mentions(now.__code__, now.__globals__)
