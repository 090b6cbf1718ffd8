"""Hookline as a host for the conformance kit of AGENT-HOOKS: each vector is a run of an agent with a scripted model."""

import json
from typing import Any, ClassVar

from agent_hooks import (
    EnforcementMode,
    HostRegistry,
    HostSurface,
    IdentityProvider,
    InterceptionEmitter,
)
from agent_hooks.ctk import Capability, RunOutcome, RunRecord, Scenario, redact_paths

from hookline import Agent
from hookline.adapters.agent_hooks import AgentHooks
from hookline.errors import RunFailedError
from hookline.events import TextDelta
from hookline.models import ModelResponse
from hookline.payloads import ToolCall
from hookline.tools import Tool


class Failed(Exception):
    """A tool of a vector reports an error."""


class Model:
    """Answers as a vector says; in pieces, if it has a stream."""

    name = provider = "mock"

    def __init__(self, vector: dict[str, Any]) -> None:
        self._script = [entry["respond"] for entry in vector["scenario"].get("model_script", [])]
        self._next = 0

    def _response(self) -> tuple[dict[str, Any], ModelResponse]:
        wanted = self._script[self._next]
        self._next += 1
        calls = tuple(ToolCall(call["id"], call["name"], call["args"]) for call in wanted["tool_calls"])
        return wanted, ModelResponse(wanted["content"] or "", calls, finish_reason=wanted["finish_reason"])

    async def complete(self, request):
        """Return the next reply."""
        return self._response()[1]

    async def stream(self, request):
        """Yield the pieces of the next reply, then all of it, unless the vector breaks it off."""
        wanted, response = self._response()
        for piece in wanted.get("stream", ()):
            yield piece
        if not wanted.get("stream_truncated"):
            yield response

    def count_tokens(self, content):
        """Return no tokens."""
        return 0


class HooklineHarness:
    """Runs vectors with an agent of Hookline."""

    name = "hookline"
    capabilities: ClassVar[set[Capability]] = {
        Capability.MODEL_CALLS,
        Capability.TOOL_CALLS,
        Capability.INT64_JSON,
        Capability.BIGINT_JSON,
        Capability.HOST_DECLARATION,
    }
    tool_seam_host_error = "continue"

    def __init__(self, vector: dict[str, Any]) -> None:
        self.vector = vector
        self.incremental = vector.get("part") == "streaming/incremental"
        if self.incremental:
            self.capabilities = {*self.capabilities, Capability.INCREMENTAL_OUTPUT}
        self.released = ""
        self.persisted = ""

    def host_surface(self) -> HostSurface:
        """Return what this host can do."""
        surface = HostSurface.from_capabilities(sorted(each.value for each in self.capabilities))
        return surface.with_exposure_bound("none") if self.incremental else surface

    def setup(
        self,
        scenario: Scenario,
        interceptors: list[Any],
        resolver: Any,
        mode: EnforcementMode,
        composition: Any,
        identity_provider: str | None,
        redact_for_approval: list[str] | None = None,
    ) -> None:
        """Prepare a run with these interceptors."""

        def fail(context):
            raise RuntimeError("the identity provider of this vector fails")

        provider: Any = IdentityProvider("ctk-fault", fail) if identity_provider == "ctk-fault" else identity_provider
        emitter = InterceptionEmitter(mode=mode, resolver=resolver, composition=composition, identity_provider=provider)
        if redact_for_approval:
            emitter.set_approval_redactor(lambda context: redact_paths(context, list(redact_for_approval)))
        for interceptor in interceptors:
            emitter.register(interceptor)
        self._begin(scenario, emitter)

    def setup_declared(self, scenario: Scenario, document: dict[str, Any], registry: HostRegistry) -> None:
        """Prepare a run with a host declaration."""
        self._begin(scenario, InterceptionEmitter.from_declaration_value(document, registry))

    def _begin(self, scenario: Scenario, emitter: InterceptionEmitter) -> None:
        self.scenario, self.emitter = scenario, emitter
        self.invoked: list[dict[str, Any]] = []

    def _tool(self, spec: Any) -> Tool:
        def run(**arguments: Any) -> Any:
            value, is_error = spec.invoke(arguments)
            self.invoked.append({"name": spec.name, "args": arguments})
            if is_error:
                raise Failed(value)
            return value

        return Tool(run, name=spec.name, description="A tool of a vector.", effects=[])

    async def run(self) -> RunRecord:
        """Run the agent, and return what happened."""
        hooks = AgentHooks(emitter=self.emitter, incremental=self.incremental)
        tools = [self._tool(spec) for spec in self.scenario.tools.values()]
        agent = Agent("hookline", llm=Model(self.vector), tools=tools, hooks=[hooks])
        run = agent.start(self.scenario.input["content"])
        async for event in run.events():
            if isinstance(event, TextDelta):
                self.released += event.text
        try:
            result = await run.result()
        except RunFailedError as failed:
            result = failed.result
        completed = result.status == "completed"
        self.persisted = json.dumps([message.content for message in result.messages])
        return RunRecord(
            outcome=RunOutcome.COMPLETED if completed else RunOutcome.BLOCKED,
            final_output=result.reply if completed else None,
            tool_invocations=self.invoked,
            identities=[(record.input_identity, record.enforced_identity) for record in self.emitter.results],
            records=[record.to_wire() for record in self.emitter.results],
        )

    def teardown(self) -> None:
        """Do nothing: a harness is used once."""
