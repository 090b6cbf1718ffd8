"""Tell the model who it talks to.

What you know of a user takes a lookup, and belongs into the system prompt. `session_start` fires once for each session,
so the lookup is made once; what it found stays in `ctx.scratch`, the notepad of the conversation; and
`before_prompt_build` puts it into the prompt of every run. `MemoryInjectionHook` does this with facts an agent
remembers.
"""

from hookline import BEFORE_PROMPT_BUILD, SESSION_START
from hookline import Agent, AgentContext, HookResult, PromptBuild, ScriptedModel, SessionStart, hook, observer

USERS = {"ann": "Ann, an engineer. She likes short answers."}


@observer(SESSION_START)
async def look_up(ctx: AgentContext, start: SessionStart) -> None:
    print("(looking up)")
    ctx.scratch["user"] = USERS.get(ctx.state.metadata.get("user", ""))


@hook(BEFORE_PROMPT_BUILD, priority=80)
def tell(ctx: AgentContext, build: PromptBuild) -> HookResult | None:
    user = ctx.scratch.get("user")
    return HookResult.merge(append_system=f"You talk to {user}") if user else None


if __name__ == "__main__":
    llm = ScriptedModel(["Hi."], loop=True)
    agent = Agent("helper", "", "You help.", llm=llm, hooks=[look_up, tell])
    conversation = AgentContext()
    for task in ("Hello.", "Hello again."):
        agent.run(task, ctx=conversation, metadata={"user": "ann"})
        print(llm.requests[-1].messages[0].content.splitlines()[-1])

# prints:
# (looking up)
# You talk to Ann, an engineer. She likes short answers.
# You talk to Ann, an engineer. She likes short answers.
