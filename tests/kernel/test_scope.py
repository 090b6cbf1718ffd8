"""The scope of a fire, and the context of hooks outside a run."""

import asyncio
from collections import Counter
from functools import partial
from typing import TypedDict

import pytest

from hookline import BEFORE_TOOL, HookRegistry, ToolCallRequest, observer
from hookline._kernel.scope import CURRENT, FIRED, BaseContext, Scope, is_being_closed, scope_of
from hookline.payloads import AgentState


def test_a_bare_scope_is_quiet_and_has_no_deadline():
    scope = Scope(BaseContext())
    assert (scope.is_run, scope.has_consumers, scope.cancellation.deadline) == (False, False, None)
    assert BEFORE_TOOL not in scope.fire_observers.watched_points


def test_contexts_share_neither_state_nor_hook_state():
    one, two = BaseContext(), BaseContext()
    one.hook_state[1], one.scratch["a"] = "mine", 1
    assert (two.hook_state, two.scratch) == ({}, {})
    scope_of(one).accept_state(one.state.with_metadata(a=1))
    assert (one.state.metadata, two.state) == ({"a": 1}, AgentState())


def test_a_state_is_made_once():
    window = BaseContext()
    assert window.state is window.state
    assert scope_of(window) is scope_of(window)


def test_attributes_of_a_bare_context_cannot_be_assigned():
    window = BaseContext()
    for name in ("state", "scratch", "hook_state", "anything"):
        with pytest.raises(AttributeError):
            setattr(window, name, {})


def test_an_object_of_another_type_gets_a_new_scope():
    mine = object()
    assert scope_of(mine).ctx is mine
    assert isinstance(scope_of(None).ctx, BaseContext)


def test_the_state_of_a_scope_that_has_ended_stays_readable():
    window = BaseContext()
    over = scope_of(window)
    over.accept_state(over.state.with_metadata(a=1))
    over.ctx = None
    assert window.state.metadata == {"a": 1}
    assert scope_of(window) is not over


def test_a_coroutine_is_closed_outside_the_context_of_its_scope():
    scope = Scope(BaseContext())
    assert is_being_closed(scope)
    for variable in (CURRENT, FIRED):
        token = variable.set(scope)
        assert not is_being_closed(scope)
        variable.reset(token)


async def test_outside_a_run_the_task_determines_whether_it_is_cancelled():
    cancellation = Scope(None).cancellation
    assert not cancellation.is_cancelled()
    task = asyncio.current_task()
    task.cancel()
    assert cancellation.is_cancelled()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(0)
    task.uncancel()
    assert not cancellation.is_cancelled()


def test_outside_a_task_nothing_is_cancelled():
    loop, seen = asyncio.new_event_loop(), []
    loop.call_soon(lambda: (seen.append(Scope(None).cancellation.is_cancelled()), loop.stop()))
    loop.run_forever()
    loop.close()
    assert seen == [False]


class Findings:
    """The state of a hook."""


class MoreFindings(Findings):
    """Another one."""


class Texts(TypedDict, total=False):
    """A state that is a dict."""

    text: str


def test_own_state_is_created_once_and_is_that_of_one_hook():
    ctx, one, two = BaseContext(), object(), object()
    state = ctx.own_state(one, Findings)
    assert type(state) is Findings
    assert ctx.own_state(one, Findings) is state
    assert ctx.own_state(one, lambda: 1 / 0) is state
    assert ctx.hook_state[id(one)] is state
    assert ctx.own_state(two, Findings) is not state
    assert BaseContext().own_state(one, Findings) is not state


def test_own_state_may_be_made_by_any_factory():
    ctx, hooks = BaseContext(), [object() for _ in range(4)]
    for _ in range(2):
        assert ctx.own_state(hooks[0], dict[str, int]) == {}
        assert ctx.own_state(hooks[1], Texts) == {}
        assert ctx.own_state(hooks[2], lambda: None) is None
        assert ctx.own_state(hooks[3], partial(Counter, "aab")) == {"a": 2, "b": 1}


def test_own_state_of_another_class_is_an_error_that_names_both():
    ctx, hook = BaseContext(), object()
    ctx.own_state(hook, Findings)
    for other in (MoreFindings, dict, dict[str, int], Texts):
        with pytest.raises(TypeError, match=r"is a Findings, not a (MoreFindings|dict)"):
            ctx.own_state(hook, other)
    assert type(ctx.own_state(hook, object)) is Findings  # every state is an object


def test_own_state_of_a_failed_factory_is_not_kept():
    ctx, hook = BaseContext(), object()
    with pytest.raises(ZeroDivisionError):
        ctx.own_state(hook, lambda: 1 / 0)
    assert type(ctx.own_state(hook, Findings)) is Findings


def test_own_state_takes_a_hook_and_a_factory():
    class Rules:
        def judge(self, ctx, request):
            """Judge nothing."""

        decorated = observer(BEFORE_TOOL)(judge)

    ctx, rules = BaseContext(), Rules()
    for wrong in (id(rules), rules.judge, rules.decorated):  # the next one is another object
        with pytest.raises(TypeError, match="takes the hook itself, such as self"):
            ctx.own_state(wrong, dict)
    with pytest.raises(TypeError, match="takes a class or a function"):
        ctx.own_state(rules, {})


def test_own_state_keeps_the_ids_of_removed_hooks():
    ctx, seen = BaseContext(), []
    for _ in range(100):
        seen.append(ctx.own_state(Findings(), list))  # each hook is unreachable at once
    assert len({id(state) for state in seen}) == 100


async def test_own_state_of_a_function_and_of_an_object_outside_a_run():
    @observer(BEFORE_TOOL)
    def count(ctx, request):
        ctx.own_state(count, Counter)[request.name] += 1

    ctx, registry = BaseContext(), HookRegistry([count])
    for name in ("a", "b", "a"):
        await registry.fire(BEFORE_TOOL, ToolCallRequest("1", name), ctx=ctx)
    assert ctx.own_state(count, Counter) == {"a": 2, "b": 1}
