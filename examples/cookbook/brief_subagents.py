"""Control the tasks of subagents.

An agent that delegates writes the task of another agent, which may work for someone else. This hook adds the house
rules to every such task, removes names of customers, and refuses some tasks completely. `subagent_spawning` is a merge
point: a hook returns a new `prompt`, or an `error` that refuses the task.
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
    print("Task of the writer:", writer.requests[0].messages[-1].content)
    print("Results of the boss:", *(message.content for message in result.messages if message.role == "tool"), sep="\n")

# prints:
# Task of the writer: Write a letter to a customer. Keep it under 100 words.
# Results of the boss:
# Dear customer ...
# writer was refused by brief_subagents: Contracts are not delegated.
