"""Say what subagents may be told.

An agent that delegates writes the task of another one, which perhaps works for somebody else. This hook adds the house
rules to every such task, takes names of customers out, and refuses what must not be delegated at all.
`subagent_spawning` is a merge point: a hook gives a new `prompt`, or an `error` that refuses.
"""

from hookline import Agent, AgentContext, HookResult, ScriptedModel, call, hook
from hookline.payloads import Subagent
from hookline.points import SUBAGENT_SPAWNING
from hookline.teams import Team

CUSTOMERS = ("Miller", "Okafor")


@hook(SUBAGENT_SPAWNING, priority=100)
def brief_subagents(ctx: AgentContext, child: Subagent) -> HookResult:
    if "contract" in child.prompt:
        return HookResult.merge(error="Contracts are not delegated.")
    prompt = child.prompt
    for name in CUSTOMERS:
        prompt = prompt.replace(name, "a customer")
    return HookResult.merge(prompt=f"{prompt} Keep it under 100 words.")


if __name__ == "__main__":
    tasks = ["Write a letter to Okafor.", "Read the contract."]
    writer = ScriptedModel(["Dear customer ..."])
    boss = ScriptedModel([*(call("delegate", to="writer", task=task) for task in tasks), "One of two."])
    team = Team()
    team.add(Agent("boss", llm=boss, tools=[team], hooks=[brief_subagents]))
    team.add(Agent("writer", "writes letters", llm=writer))
    result = team.run("Work through the list.")
    print("The writer was told:", writer.requests[0].messages[-1].content)
    print("The boss was told:", *(message.content for message in result.messages if message.role == "tool"), sep="\n")

# prints:
# The writer was told: Write a letter to a customer. Keep it under 100 words.
# The boss was told:
# Dear customer ...
# writer was refused by brief_subagents: Contracts are not delegated.
