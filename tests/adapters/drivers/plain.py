"""A loop in a few lines, as many programs have their own: what an adapter does, without any framework."""

import asyncio
from typing import Any

from hookline import Message, ModelRequest
from hookline.adapters._foreign import Adapter, ForeignRun, RunOverError, Support
from hookline.models import ModelResponse
from hookline.payloads import ToolCall
from hookline.tools import Tool

from ..loops import Case, LoopDriver, Outcome

SUPPORT = Support("Plain loop", "msgspec", "0", "1000")  # a package that is always there


class Driver(LoopDriver):
    name = "Plain loop"
    support = SUPPORT
    modes = ("async", "sync", "stream")

    async def run(self, case: Case) -> Outcome:
        outcome = Outcome()
        options: Any = {**case.options, "sinks": [outcome.events.append, *case.options.get("sinks", ())]}
        adapter = Adapter(SUPPORT, case.hooks, options)
        loop = _Loop(case, outcome, adapter)
        try:
            if case.mode == "sync":
                await asyncio.to_thread(loop.run_sync)
            else:
                await loop.run()
        except Exception as error:
            outcome.error = error
        return outcome


class _Loop:
    def __init__(self, case: Case, outcome: Outcome, adapter: Adapter) -> None:
        self.case, self.outcome, self.adapter = case, outcome, adapter
        self.tools = {tool.name: tool for tool in map(Tool, case.tools)}
        self.messages = [Message("system", case.system), Message("user", case.task)]

    def request(self) -> ModelRequest:
        return ModelRequest(tuple(self.messages), tuple(tool.spec for tool in self.tools.values()), "scripted")

    def take(self, settled: Any) -> tuple[ToolCall, ...] | None:
        """Add a reply. Return the calls to make, or ``None`` if the run is complete."""
        reply = settled.reply
        self.messages.append(Message("assistant", reply.content, reply.tool_calls))
        if settled.note:
            self.messages.append(Message("user", settled.note))
        return reply.tool_calls if reply.tool_calls or settled.again else None

    def add(self, results: Any) -> None:
        self.messages += [Message("tool", each.text, (), each.id, each.name) for each in results]

    async def run(self) -> None:
        run = self.adapter.start(self.case.task, streaming=self.case.mode == "stream")
        try:
            while (calls := self.take(await self.call_model(run))) is not None:
                self.add(await asyncio.gather(*(run.call_tool(call, self.execute) for call in calls)))
        except RunOverError as over:
            self.outcome.reply = over.result.reply
            return
        self.outcome.reply = (await run.end()).reply

    async def call_model(self, run: ForeignRun) -> Any:
        if self.case.mode != "stream":
            return await run.call_model(self.request(), self.case.model.complete)
        async for item in run.stream_model(self.request(), self.case.model.stream):
            if isinstance(item, str):
                self.outcome.shown += item
        return item

    async def execute(self, name: str, arguments: dict[str, Any]) -> Any:
        tool = self.tools[name]
        return await tool.fn(**arguments) if tool.is_async else tool.fn(**arguments)

    def run_sync(self) -> None:
        run = self.adapter.start_sync(self.case.task)

        def send(request: ModelRequest) -> ModelResponse:
            return asyncio.run(self.case.model.complete(request))

        def execute(name: str, arguments: dict[str, Any]) -> Any:
            return self.tools[name].fn(**arguments)

        try:
            while (calls := self.take(run.call_model_sync(self.request(), send))) is not None:
                self.add([run.call_tool_sync(call, execute) for call in calls])
        except RunOverError as over:
            self.outcome.reply = over.result.reply
            return
        self.outcome.reply = run.end_sync().reply
