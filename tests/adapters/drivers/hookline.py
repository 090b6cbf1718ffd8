"""Hookline's own loop, which the others must equal."""

from hookline import Agent, RunFailedError
from hookline.events import TextDelta

from ..loops import Case, LoopDriver, Outcome, in_thread


class Driver(LoopDriver):
    name = "Hookline"
    modes = ("async", "sync", "stream")

    async def run(self, case: Case) -> Outcome:
        options = dict(case.options)
        metadata = options.pop("metadata", {})
        agent = Agent(
            options.pop("name", "agent"), "", case.system, llm=case.model, tools=case.tools, hooks=case.hooks, **options
        )
        outcome = Outcome()
        try:
            if case.mode == "sync":
                options = {"metadata": metadata, "sinks": [outcome.events.append]}
                outcome.reply = (await in_thread(agent.run, case.task, **options)).reply
            elif case.mode == "stream":
                async for event in agent.stream(case.task, metadata=metadata):
                    outcome.events.append(event)
                    outcome.shown += event.text if isinstance(event, TextDelta) else ""
                outcome.reply = outcome.result.reply
            else:
                outcome.reply = (await agent.arun(case.task, metadata=metadata, sinks=[outcome.events.append])).reply
        except RunFailedError as error:
            outcome.error = error
        return outcome
