"""Tell the model who it talks to.

What you know of a user takes a lookup, and belongs into the system prompt: `before_prompt_build` is fired once per run,
and what its hooks give is joined to the prompt. `ctx.scratch`, the notepad of a conversation, spares a second lookup.
`session_start` is fired for the first run of a session only: a place to count newcomers, or to greet them.
`MemoryInjectionHook` tells the model what an agent remembers.
"""

from hookline import BEFORE_PROMPT_BUILD, SESSION_START
from hookline import Agent, AgentContext, HookResult, PromptBuild, ScriptedModel, SessionStart, hook, observer


async def look_up(user: str) -> str:
    """A question to your database, in real life."""
    print(f"(looking up {user})")
    return "Ann, an engineer who likes short answers"


@hook(BEFORE_PROMPT_BUILD, priority=80)
async def tell_who_the_user_is(ctx: AgentContext, build: PromptBuild) -> HookResult:
    if "user" not in ctx.scratch:
        ctx.scratch["user"] = await look_up(ctx.state.metadata.get("user", "somebody"))
    return HookResult.merge(append_system=f"You talk to {ctx.scratch['user']}.")


@observer(SESSION_START)
def count_sessions(ctx: AgentContext, start: SessionStart) -> None:
    print("(a new session)")


if __name__ == "__main__":
    llm = ScriptedModel(["Hi."], loop=True)
    agent = Agent("helper", "", "You help.", llm=llm, hooks=[tell_who_the_user_is, count_sessions])
    conversation = AgentContext()
    for task in ("Hello.", "Hello again."):
        agent.run(task, ctx=conversation, metadata={"user": "ann"})
        print(llm.requests[-1].messages[0].content.splitlines()[-1])

# prints:
# (a new session)
# (looking up ann)
# You talk to Ann, an engineer who likes short answers.
# You talk to Ann, an engineer who likes short answers.
