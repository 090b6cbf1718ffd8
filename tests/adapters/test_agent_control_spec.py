"""Policies in Cedar and Rego, through the AGENT-HOOKS adapter."""

import pytest

from hookline import Agent, ScriptedModel, call, reply, tool

agent_control_spec = pytest.importorskip("agent_control_spec", reason="pip install agent-control-spec")
agent_hooks = pytest.importorskip("agent_hooks")

MANIFEST = """
agent_control_specification_version: 0.4.0-alpha.1
policies:
  refunds: {policy}
intervention_points:
  pre_tool_call:
    policy_target: $.tool_call.args
    tool_name_from: $.tool_call.name
    policy: {{ id: refunds }}
tools:
  refund: {{ type: Tool, id: refund }}
"""
CEDAR = """{ type: cedar, policy_set: "permit (principal, action, resource); forbid (principal, action, resource)
    when { context.tool_call.args has amount && context.tool_call.args.amount > 100 };" }"""
REGO = "{ type: rego, bundle: ./refunds.rego, query: data.refunds.verdict }"
MODULE = """
package refunds

import rego.v1

default verdict := {"decision": "allow"}

verdict := {"decision": "deny", "reason": "policy:large", "message": "At most 100."} if {
    input.policy_target.value.amount > 100
}
"""


@tool
def refund(order: str, amount: int) -> str:
    """Refund."""
    return f"refunded {amount}"


@tool
def count() -> str:
    """Count."""
    return "7"


class ToolCalls:
    """Asks a policy about calls of tools only."""

    def __init__(self, manifest):
        self._policy = agent_control_spec.AcsInterceptor(str(manifest))

    def intercept(self, context):
        if context["interception_point"] == "pre_tool_call":
            return self._policy.intercept(context)
        return agent_hooks.Verdict.allow()


@pytest.mark.parametrize(("policy", "denied"), [(CEDAR, "policy1"), (REGO, "At most 100.")], ids=["cedar", "rego"])
def test_a_policy_denies_one_call_and_lets_another_pass(tmp_path, policy, denied):
    from hookline.adapters.agent_hooks import AgentHooks

    (tmp_path / "refunds.rego").write_text(MODULE)
    (tmp_path / "manifest.yaml").write_text(MANIFEST.format(policy=policy))
    turns = [call("refund", order="A", amount=250), call("refund", order="A", amount=50), call("count"), reply("done")]
    hooks = AgentHooks(ToolCalls(tmp_path / "manifest.yaml"))
    result = Agent("clerk", llm=ScriptedModel(turns), tools=[refund, count], hooks=[hooks]).run("x")
    found = [message.content for message in result.messages if message.role == "tool"]
    assert found[:2] == [f"Denied at pre_tool_call: {denied}", "refunded 50"]
    assert found[2].startswith("Denied at pre_tool_call: ")  # the manifest does not know the tool


def test_moments_that_a_manifest_does_not_bind_are_denied(tmp_path):
    from hookline.adapters.agent_hooks import AgentHooks

    (tmp_path / "manifest.yaml").write_text(MANIFEST.format(policy=CEDAR))
    hooks = AgentHooks(agent_control_spec.AcsInterceptor(str(tmp_path / "manifest.yaml")))
    result = Agent("clerk", llm=ScriptedModel(["done"]), hooks=[hooks]).run("x")
    assert result.status == "ended"
