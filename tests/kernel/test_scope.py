"""What dispatch needs of a context."""

import asyncio

from hookline._kernel.scope import Scope
from hookline.payloads import AgentState


def test_a_bare_scope_is_quiet_and_has_no_deadline():
    scope = Scope()
    assert (scope.listening, scope.recording, scope.tracing, scope.deadline) == (False, False, False, None)
    assert (scope.entry, scope.began) == (None, 0.0)


def test_scopes_share_neither_state_nor_what_hooks_keep_in_them():
    one, two = Scope(), Scope()
    one.hook_state[1], one.scratch["a"] = "mine", 1
    assert (two.hook_state, two.scratch) == ({}, {})
    one.accept_state(one.state.with_metadata(a=1))
    assert (one.state.metadata, two.state) == ({"a": 1}, AgentState())


def test_a_state_is_made_once():
    scope = Scope()
    assert scope.state is scope.state


def test_nobody_is_being_cancelled_outside_a_task():
    loop, seen = asyncio.new_event_loop(), []
    loop.call_soon(lambda: (seen.append(Scope().is_cancelled()), loop.stop()))
    loop.run_forever()
    loop.close()
    assert seen == [False]
