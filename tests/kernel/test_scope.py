"""The scope of a fire, and the context of hooks outside a run."""

import asyncio

import pytest

from hookline._kernel.scope import CURRENT, FIRED, BaseContext, Scope, is_being_closed, scope_of
from hookline.payloads import AgentState


def test_a_bare_scope_is_quiet_and_has_no_deadline():
    scope = Scope(BaseContext())
    assert (scope.is_run, scope.wants_fires, scope.tracing, scope.cancellation.deadline) == (False, False, False, None)


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
