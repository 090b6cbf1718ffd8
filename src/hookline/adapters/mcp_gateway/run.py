"""The run of a client's session: every call of the client is judged by the hooks, in the loop of all runs."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from ..._base.errors import HooklineError, PlainError
from ..._base.frozen import FrozenDict, freeze, thaw
from ..._base.text import describe, stop_text
from ..._kernel.errors import CallRefusedError
from ..._kernel.hook import Hook
from ..._kernel.payloads import ToolCallResult
from ..._kernel.registry import HookRegistry
from ..._kernel.values import ToolCall, ToolSpec
from ..._run.budget import Budget, Limits
from ..._run.foreign import CallsAgent, Exchange, ForeignTools
from ..._run.termination import RunFailedError
from ...tools._tool import CheckedArguments
from .._foreign import Adapter, AdapterOptions, ForeignRun, RunOverError, Support

SUPPORT = Support("MCP gateway", "msgspec", "0", "1000")

Execute = Callable[[str, Mapping[str, Any] | None], Awaitable[Any]]
"""Makes a call: gets the name, and the arguments if hooks have changed them."""

log = logging.getLogger("hookline")


class RefusedError(HooklineError):
    """A call that must not be made, or whose result must not be shown. The message is for the model."""


class ServerError(PlainError):
    """What a server answered instead of a result. The message is the server's."""


class HostRun(ForeignRun):
    """A run whose host may give up a single call."""

    def _give_up(self, exchange: Exchange) -> None:
        exchange.withdraw()

    def learn(self, specs: tuple[ToolSpec, ...]) -> None:
        """Tell the hooks about tools before they are called."""
        tools = self._engine.tools
        if isinstance(tools, ForeignTools):
            tools.learn(specs)


class GatewayAdapter(Adapter):
    """The hooks and options of a gateway."""

    agent_type = CallsAgent
    run_type = HostRun

    def __init__(
        self, support: Support, hooks: Sequence[Hook | HookRegistry], options: AdapterOptions, limits: Limits
    ) -> None:
        super().__init__(support, hooks, options)
        self.session_limits = limits
        """The limits of a session, however many runs it has."""


class SessionRun:
    """The run of one session of a client. It begins with the first call.

    A run that failed or was halted is followed by another with the next call, which is judged anew. One that a hook or
    a limit has ended stays the last of its session.

    Args:
        adapter: the hooks and options.
        session: the id of the session.
    """

    def __init__(self, adapter: GatewayAdapter, session: str = "") -> None:
        self._adapter = adapter
        self._budget = Budget(adapter.session_limits)
        self._session = session
        self._run: HostRun | None = None
        self._specs: dict[str, ToolSpec] = {}
        self._over = ""
        self._prefix, self._numbers = secrets.token_hex(4), count(1)
        self.task = "A session of an MCP client"
        """What the run is about."""

    def learn(self, specs: Iterable[ToolSpec]) -> None:
        """Tell the hooks about the tools of a server."""
        self._specs.update((spec.name, spec) for spec in specs)
        if self._run is not None:
            self._run.learn(tuple(self._specs.values()))

    def new_id(self) -> str:
        """Return an id for a call."""
        return f"{self._prefix}-{next(self._numbers)}"

    async def call(self, ident: str, name: str, arguments: Mapping[str, Any], execute: Execute) -> ToolCallResult:
        """Let the hooks judge a call, make it, and let them judge the result.

        Raises:
            RefusedError: the run is over, or a hook failed.
            ServerError: the server's error, if no hook changed it.
        """
        if self._over:
            raise RefusedError(self._over)
        try:
            given = freeze(arguments)
        except (TypeError, ValueError, RecursionError) as error:
            raise RefusedError(f"The arguments cannot be judged: {describe(error):.200}") from None
        unchanged: list[bool] = []

        def validate(tool: str, found: Mapping[str, Any]) -> CheckedArguments | str:
            try:
                checked = found if isinstance(found, FrozenDict) else freeze(found)
                unchanged[:] = [tool == name and checked is given]
                return CheckedArguments.of(tool, checked, {} if unchanged[0] else thaw(checked))
            except (TypeError, ValueError, RecursionError) as error:
                return f"Invalid arguments for {tool}: {describe(error):.200}"

        async def made(tool: str, values: dict[str, Any]) -> Any:
            return await execute(tool, None if unchanged and unchanged[0] else values)

        run = self._run
        if run is None or not run.alive:
            run = self._run = self._started()
        try:
            return await run.call_tool(ToolCall(ident, name, given), made, validate)
        except RunOverError as over:
            self._run = None
            stop = over.result.stop
            why = stop_text(stop.kind, stop.message) if stop is not None else over.result.status
            text = f"Stopped: {over.result.reply or f'this session is over ({why})'}"
            if stop is None or stop.kind != "halted":
                self._over = text
            raise RefusedError(text) from None
        except (RunFailedError, CallRefusedError) as failed:
            self._run = None
            log.error("an MCP session: %s", describe(failed))
            raise RefusedError("A guard failed: the call was not run, or its result is withheld.") from None

    def _started(self) -> HostRun:
        run = self._adapter.start(self.task, session=self._session, budget=self._budget)
        assert isinstance(run, HostRun)
        if self._specs:
            run.learn(tuple(self._specs.values()))
        return run

    async def end(self) -> None:
        """End the run, because the client has gone."""
        self._over = "this session has ended"
        run, self._run = self._run, None
        if run is not None:
            with suppress(HooklineError, asyncio.TimeoutError):
                async with asyncio.timeout(10):
                    await run.end("")
