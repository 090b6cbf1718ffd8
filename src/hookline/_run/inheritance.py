"""What a run has of the run around it: its hooks, first (DESIGN 4.1, 7.10)."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import msgspec

from .._kernel.dispatch import PLAIN
from .._kernel.hook import Entry
from .._kernel.points import POINTS, Point
from .._kernel.registry import HookStack, Interceptor
from .._kernel.results import HookAction, Verdict
from .._kernel.tally import How

_EVERYWHERE: frozenset[Any] = frozenset(POINTS)
_OVER = frozenset(
    (HookAction.BLOCK, HookAction.END_TURN, HookAction.RETRY, HookAction.INVALID, HookAction.FAILED, HookAction.CLAIM)
)


def inheritable(hooks: Interceptor) -> Interceptor:
    """Those of a run's hooks that hold in the runs inside it: all but those that say ``inherit = False``."""
    if isinstance(hooks, HookStack):
        return shared(hooks)
    return Both(inheritable(hooks.own), inheritable(hooks.above)) if isinstance(hooks, Both) else hooks


def shared(hooks: HookStack) -> HookStack:
    """Those of these hooks that hold in runs inside a run too, which are conversations of their own."""
    return hooks._where(lambda entry: getattr(entry.hook, "inherit", True))


def joined(above: Interceptor, own: Interceptor) -> Interceptor:
    """The hooks of a run inside another: those of the other come first, and one that both have counts once."""
    if own is above or (isinstance(above, Both) and own in (above.own, above.above)):
        return above
    if not isinstance(above, HookStack) or not isinstance(own, HookStack):
        return Both(own, above)
    known = {(_rule(entry), entry.plugin) for layer in above.layers for entry in layer}
    firm = {_rule(entry) for layer in own.layers for entry in layer if entry.plugin is None}
    rest = (tuple(e for e in layer if not known & {(_rule(e), None), (_rule(e), e.plugin)}) for layer in own.layers)
    # What is a plugin's above and nobody's here holds whatever the filter: it is the one that stays.
    first = (tuple(e for e in layer if e.plugin is None or _rule(e) not in firm) for layer in above.layers)
    return HookStack(*first, *filter(None, rest))


def _rule(entry: Entry) -> tuple[object, ...]:
    """What makes two entries the same rule: a hook that only watches in one run may judge in another."""
    return id(entry.hook), entry.point, entry.phase, entry.on_failure, entry.timeout, entry.tools


class Both:
    """Two interceptors, where one at least is no stack of hooks: what ``own`` leaves is judged by ``above``."""

    points = _EVERYWHERE

    def __init__(self, own: Interceptor, above: Interceptor) -> None:
        self.own, self.above = own, above

    def only(self, allowed_plugins: Iterable[str] | None) -> Both:
        """The same with the hooks of these plugins only: see :meth:`HookStack.only`."""
        own, above = (p.only(allowed_plugins) if isinstance(p, (HookStack, Both)) else p for p in self._parts)
        return Both(own, above)

    def without(self, hooks: frozenset[int]) -> Both:
        """The same without the hooks of these ids."""
        own, above = (p.without(hooks) if isinstance(p, (HookStack, Both)) else p for p in self._parts)
        return Both(own, above)

    @property
    def listeners(self) -> tuple[Any, ...]:
        """The hooks that want events too."""
        return tuple(hook for part in self._parts for hook in getattr(part, "listeners", ()))

    @property
    def wrappers(self) -> tuple[Any, ...]:
        """The hooks that go around what happens."""
        return tuple(hook for part in reversed(self._parts) for hook in getattr(part, "wrappers", ()))

    @property
    def _parts(self) -> tuple[Interceptor, Interceptor]:
        return self.own, self.above

    async def intercept(self, point: Point[Any], payload: Any, ctx: Any, how: How = PLAIN) -> Verdict:
        """Fire the point at both. What one of them refuses stays refused; the observers of both are called."""
        try:
            own = await self.own.intercept(point, payload, ctx, how)
        except Exception:
            with suppress(Exception):  # of two failures the first one counts
                await self.above.intercept(point, payload, ctx, How(None, "observe", how.no_retry))
            raise
        start = "observe" if own.action in _OVER else "guard" if own.answer or own.asks else how.start
        above = await self.above.intercept(point, own.payload, ctx, How(how.validate, start, how.no_retry))
        said, value = above, above.value
        if own.action in _OVER or above.action in (HookAction.CONTINUE, HookAction.STOP):
            said, value = own, own.value
        elif own.action is HookAction.MERGE and above.action is HookAction.MERGE:
            value = own.value.replace({name: given for name, given in dict(value).items() if given is not None})
        return msgspec.structs.replace(
            said, payload=above.payload, value=value, answer=own.answer or above.answer, asks=own.asks + above.asks,
            signals=own.signals + above.signals, failures=own.failures + above.failures,
        )  # fmt: skip
