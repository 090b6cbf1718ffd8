"""Declare a point of your own.

Your program has events of its own that hooks should be able to judge: here, a deployment. A point declares its payload
and its verbs. `ctx.fire` inside a tool calls all hooks of the run at that point; `registry.fire` does so outside of a
run. These hooks have phases, priorities and timeouts like all others.
"""

from hookline import Agent, AgentContext, HookResult, ScriptedModel, call, guard, hook, tool
from hookline.hooks import HookAction
from hookline.payloads import Frozen
from hookline.points import Point


class Deployment(Frozen, frozen=True):
    service: str
    version: str = "latest"
    editable = frozenset({"version"})  # what a hook may replace


BEFORE_DEPLOY = Point("before_deploy", Deployment, verbs=("replace", "block"), when="before a service is deployed")


@hook(BEFORE_DEPLOY)
def pin_the_version(ctx: AgentContext, deployment: Deployment) -> HookResult | None:
    return HookResult.replace({"version": "4.2"}) if deployment.version == "latest" else None


@guard(BEFORE_DEPLOY)
def not_the_database(ctx: AgentContext, deployment: Deployment) -> HookResult | None:
    return HookResult.block("The database is deployed by hand.") if deployment.service == "database" else None


@tool
async def deploy(service: str, ctx: AgentContext) -> str:
    """Deploy a service."""
    verdict = await ctx.fire(BEFORE_DEPLOY, Deployment(service))
    if verdict.action is HookAction.BLOCK:
        return f"Not deployed: {verdict.value}"
    return f"{service} {verdict.payload.version} is deployed"


if __name__ == "__main__":
    llm = ScriptedModel([[call("deploy", service="shop"), call("deploy", service="database")], "Half done."])
    agent = Agent("ops", llm=llm, tools=[deploy], hooks=[pin_the_version, not_the_database])
    print(*(message.content for message in agent.run("Deploy all.").messages[2:4]), sep="\n")

# prints:
# shop 4.2 is deployed
# Not deployed: The database is deployed by hand.
