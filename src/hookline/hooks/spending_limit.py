"""Limit what each user, session or agent spends on model calls in a window of time."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, Literal

import msgspec

from .._base.workers import in_thread
from .._kernel.errors import HooklineError, RegistrationError
from .._kernel.payloads import ErrorReport, ModelReply, ModelRequest
from .._kernel.points import AFTER_LLM, BEFORE_LLM, ON_ERROR, ON_RUN_END, ON_RUN_START
from .._kernel.results import HookResult
from .._kernel.validation import check_integer, check_path, check_positive
from .._kernel.values import StopKind, Usage
from .._run.context import AgentContext
from ..models.errors import (
    AuthError,
    BadRequestError,
    ContextOverflowError,
    OverloadedError,
    RateLimitError,
    UnknownModelError,
    UnreachableError,
)
from ..stores.callers import user_of
from ..stores.errors import StoreError
from ..stores.paths import default_spending_path
from ..stores.spending import (
    REACHED,
    WINDOW_NAMES,
    Amount,
    Calendar,
    Reservation,
    SpendingAccount,
    SpendingStore,
    Window,
)

_REPLY_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_NOT_BILLED = (
    AuthError,
    BadRequestError,
    ContextOverflowError,
    OverloadedError,
    RateLimitError,
    UnknownModelError,
    UnreachableError,
)
"""Failures of calls for which no provider sends a bill."""
_UNUSED = Amount()

Per = Literal["user", "session", "agent"]


class _Call(msgspec.Struct):
    """A reservation: the request, the id of the call, the amount, and what was spent, once that is known."""

    request: ModelRequest
    id: str
    reserved: Amount
    began: tuple[int, float] | None = None
    """The tokens and the known cost of the run when the model was called; ``None`` if it was not called."""
    spent: Amount | None = None
    is_known: bool = False


class _Calls(msgspec.Struct):
    """The calls of a run that have a reservation, and the number of all calls by hop, purpose and attempt."""

    open: list[_Call] = []
    counts: dict[tuple[int, str, int], int] = {}


class SpendingLimit:
    """Stops runs of a user, session or agent that has spent an allowance for a window of time, such as a day.

    Before each model call, the hook reserves what the call may cost: its input, and the longest reply that the request
    allows. After the call, it replaces the reservation by what was spent. Both are transactions in a database, so the
    limit holds for concurrent runs and all processes that share the database, and survives restarts. Calls by hooks,
    retries and subagents count for the user of the outermost run. A call that a hook answers costs nothing.

    Example::

        limit = SpendingLimit(usd=1.0, per="user", window="1d", store="spending.db")
        agent = Agent("helper", llm="openai:gpt-5-mini", hooks=[limit])
        agent.run("Help.", metadata={"user": "ann"})

    Args:
        usd: the most that may be spent in a window, in USD.
        tokens: the most input and output tokens in a window.
        per: whose spending counts together. ``"user"`` is ``user`` in the metadata of the run, else the caller of the
            server or the sender in the channel. A function gets the context of the outermost run with this hook.
        window: an hour, a day from midnight, a week from Monday, or a month.
        timezone: the time zone of the windows.
        store: a SQLite file, the address of a PostgreSQL database, or a :class:`~hookline.stores.SpendingStore`; by
            default a file of the project.
        max_reply_tokens: the length of the reply to reserve for a request without ``max_tokens``.
        reserve_usd: USD to reserve for a call whose price is not known before it is made; without it, such calls are
            refused if ``usd`` is limited.
        account: the name under which the spending is counted; by default made of ``per`` and the window. Limits with
            the same account in a store count together.

    Raises:
        RegistrationError: an argument is invalid, or there is no limit.
    """

    points = frozenset({ON_RUN_START, BEFORE_LLM, AFTER_LLM, ON_ERROR, ON_RUN_END})
    phase: ClassVar[Mapping[str, str]] = {
        ON_RUN_START: "rewrite",
        BEFORE_LLM: "guard",
        AFTER_LLM: "observe",
        ON_ERROR: "observe",
        ON_RUN_END: "observe",
    }
    priority: ClassVar[Mapping[str, float]] = {ON_RUN_START: 200, BEFORE_LLM: -200}  # after guards that refuse a call

    def __init__(
        self,
        usd: float | None = None,
        tokens: int | None = None,
        *,
        per: Per | Callable[[AgentContext[Any]], str] = "user",
        window: Window = "1d",
        timezone: str = "UTC",
        store: SpendingStore | str | os.PathLike[str] | None = None,
        max_reply_tokens: int = 4096,
        reserve_usd: float | None = None,
        account: str | None = None,
    ) -> None:
        if usd is None and tokens is None:
            raise RegistrationError("give a limit: usd= or tokens=")
        self.usd = None if usd is None else check_positive(usd, "usd")
        self.tokens = None if tokens is None else check_integer(tokens, "tokens")
        self.per = _checked_per(per)
        self.calendar = Calendar(window, timezone)
        self.max_reply_tokens = check_integer(max_reply_tokens, "max_reply_tokens")
        self.reserve_usd = None if reserve_usd is None else check_positive(reserve_usd, "reserve_usd")
        self.account = _account_name(account, self.per, self.calendar)
        if not isinstance(store, SpendingStore):
            place = default_spending_path(".") if store is None else check_path(store, "store must be a SQLite file")
            try:
                store = SpendingStore(place)
            except StoreError as error:
                raise RegistrationError(str(error)) from error
        self.store = store

    async def __call__(self, point: str, ctx: Any, payload: Any) -> HookResult | None:
        """Reserve at ``before_llm``, and settle when the usage of the call is known."""
        if point == ON_RUN_START:
            self._subject(ctx)
            await self._tree(ctx)
        elif point == BEFORE_LLM:
            return await self._reserve(ctx, payload)
        elif calls := ctx.own_state(self, _Calls).open:
            if point == AFTER_LLM:
                _note_reply(calls, payload)
            elif point == ON_ERROR:
                if payload.request is None:
                    return None
                _note_failure(calls, payload)
            else:
                for call in calls:
                    _note_end(call)
            await self._settle(ctx, calls)
        return None

    def wrap(self, ctx: Any, payload: Any) -> AbstractContextManager[None] | None:
        """Note which calls are made, and what an interrupted one has used."""
        if not isinstance(payload, ModelRequest):
            return None
        call = _find(ctx.own_state(self, _Calls).open, payload)
        return None if call is None else _watched(ctx, call)

    async def _reserve(self, ctx: Any, request: ModelRequest) -> HookResult | None:
        calls, subject = ctx.own_state(self, _Calls), self._subject(ctx)
        key = request.hop, request.purpose, request.attempt
        number = calls.counts[key] = calls.counts.get(key, 0) + 1
        tree = await self._tree(ctx)
        id = f"{tree} {ctx.run_id} {request.hop} {request.attempt} {number} {request.purpose}"
        amount, is_priced = await self._amount(ctx, request)

        def reserve() -> Any:
            if ctx.is_replay:  # of a tape without this hook
                return None
            if not is_priced:
                raise HooklineError(
                    f"the price of model {request.model!r} is unknown, so {self.account!r} cannot limit it: set its "
                    "price (get_model(..., price=Price(...)), or prices in hookline.toml), or give SpendingLimit "
                    "reserve_usd=, or tokens= instead of usd="
                )
            return in_thread(self._reserve_now, subject, id, amount)

        call = _Call(request, id, amount)
        if not ctx.is_replay:
            calls.open.append(call)  # before the reservation: the run may be cancelled while it is made
        try:
            found = await ctx.once(f"reservation of {self.account}", reserve)
        except Exception:
            calls.open.remove(call)
            raise
        if found is None:
            return None
        made = msgspec.convert(found, Reservation)
        if made.granted:
            return None
        if not ctx.is_replay:
            calls.open.remove(call)
        kind, message = self._refusal(made.account, amount)
        return HookResult.stop(message, kind=kind, reason="spending limit")

    def _reserve_now(self, subject: str, id: str, amount: Amount) -> Any:
        made = self.store.reserve(
            self.account,
            subject,
            id,
            amount,
            calendar=self.calendar,
            usd_limit=self.usd,
            token_limit=self.tokens,
        )
        return msgspec.to_builtins(made)

    async def _amount(self, ctx: Any, request: ModelRequest) -> tuple[Amount, bool]:
        """Return what a call may use, and whether its price is known as far as it is limited."""
        model = ctx.called_model
        longest = [each for name in _REPLY_LIMITS if isinstance(each := request.params.get(name), int) and each > 0]
        usage = Usage(await model.count_request(request), min(longest, default=self.max_reply_tokens))
        usd = model.price(usage)
        if usd is None:
            usd = self.reserve_usd
        return Amount(usd or 0.0, usage.total_tokens), usd is not None or self.usd is None

    async def _settle(self, ctx: Any, calls: list[_Call]) -> None:
        subject = self._subject(ctx)
        for call in [each for each in calls if each.is_known]:
            if call not in calls:  # another observer settles it
                continue
            calls.remove(call)
            made = call.began is not None
            try:
                await in_thread(self.store.settle, self.account, subject, call.id, call.spent, made=made)
            except BaseException:
                calls.append(call)  # tried again when the run ends
                raise

    @staticmethod
    async def _tree(ctx: Any) -> str:
        """Return an id of the outermost run that no later run has, also if it is deleted and another gets its run id.

        All limits use the same one, because a call counts once in an account that several of them share.
        """
        key = id(SpendingLimit)
        if key not in ctx.tree_state:
            made = await ctx.once("spending of this run", lambda: secrets.token_hex(8))
            ctx.tree_state.setdefault(key, made)
        return str(ctx.tree_state[key])

    def _subject(self, ctx: Any) -> str:
        """Return whose account it is: that of the outermost run."""
        known = ctx.tree_state.get(id(self))
        if known is None:
            known = ctx.tree_state[id(self)] = self._find_subject(ctx)
        return str(known)

    def _find_subject(self, ctx: Any) -> str:
        if self.per == "user":
            return user_of(ctx.state.metadata)
        if self.per == "session":
            return str(ctx.ids.session_id)
        if self.per == "agent":
            return str(ctx.agent_name)
        found = self.per(ctx)
        if not isinstance(found, str):
            raise TypeError(f"per= of a SpendingLimit returned {found!r:.80}; it must return a text")
        return found

    def _refusal(self, account: SpendingAccount, amount: Amount) -> tuple[StopKind, str]:
        """Return the kind of the limit that a call would exceed, and a message for the user of the run."""
        whose = f"of {self.per} {account.subject}" if isinstance(self.per, str) else f"of {account.subject}"
        whose = whose if account.subject else f"of runs without a {self.per if self.per == 'user' else 'name'}"
        used = Amount(account.spent.usd + account.reserved.usd, account.spent.tokens + account.reserved.tokens)
        window = WINDOW_NAMES[self.calendar.window]
        kind: StopKind = "cost_limit"
        if self.usd is not None and used.usd + amount.usd > self.usd:
            limit, taken, needed = _usd(self.usd), _usd(used.usd), f"cost up to {_usd(amount.usd)}"
            is_hopeless = amount.usd > self.usd
        else:
            kind = "token_limit"
            limit, taken, needed = f"{self.tokens:,} tokens", f"{used.tokens:,}", f"use up to {amount.tokens:,}"
            is_hopeless = self.tokens is not None and amount.tokens > self.tokens
        if is_hopeless:
            then = "That is more than the whole limit: set max_tokens of the model lower, or the limit higher."
        else:
            then = f"There is room again at {self.calendar.time_text(account.until)}."
        return (
            kind,
            f"{REACHED}{whose} reached: {taken} of {limit} used {window}, and this call may {needed}. {then}",
        )


@contextmanager
def _watched(ctx: Any, call: _Call) -> Iterator[None]:
    """Note that the model is called. If the call fails, note what the run has counted for it."""
    call.began = tokens, cost = ctx.budget.tokens, ctx.budget.known_cost
    try:
        yield
    except BaseException as error:
        if used := ctx.budget.tokens - tokens:  # the part of a reply that was received
            call.spent = Amount(ctx.budget.known_cost - cost or call.reserved.usd, used)
        elif isinstance(error, _NOT_BILLED):
            call.spent = _UNUSED
        raise


def _find(calls: list[_Call], request: ModelRequest | None) -> _Call | None:
    return next((call for call in calls if call.request is request), None)


def _note_reply(calls: list[_Call], reply: ModelReply) -> None:
    """Note what a reply has used. One whose usage nobody knows counts with what was reserved."""
    call = _find(calls, reply.request)
    if call is None:
        return
    call.is_known = True
    if reply.source != "model":
        _note_end(call)
    else:
        usd, tokens = reply.cost, reply.usage.total_tokens
        call.spent = Amount(call.reserved.usd if usd is None else usd, tokens or call.reserved.tokens)


def _note_failure(calls: list[_Call], failure: ErrorReport) -> None:
    call = _find(calls, failure.request)
    if call is not None:
        call.is_known = True


def _note_end(call: _Call) -> None:
    """Note that a call is over. One that was not made has used nothing."""
    call.is_known = True
    if call.began is None:
        call.spent = _UNUSED


def _checked_per(per: Any) -> Any:
    if per in ("user", "session", "agent") or (callable(per) and not isinstance(per, type)):
        return per
    raise RegistrationError(f"per must be 'user', 'session', 'agent' or a function of the context, not {per!r:.80}")


def _account_name(given: str | None, per: Any, calendar: Calendar) -> str:
    if given is not None:
        if not isinstance(given, str) or not given.strip():
            raise RegistrationError(f"account must be a name, not {given!r:.80}")
        return given
    name = per if isinstance(per, str) else getattr(per, "__name__", "<lambda>")
    if name == "<lambda>":
        raise RegistrationError("a SpendingLimit whose per= has no name needs account='...'")
    zone = "" if calendar.timezone == "UTC" else f" {calendar.timezone}"
    return f"{name} {calendar.window}{zone}"


def _usd(amount: float) -> str:
    return f"${amount:,.2f}" if amount >= 1 or amount == 0 else f"${amount:.4f}"
