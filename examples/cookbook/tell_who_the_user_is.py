"""Tell the model about the user.

Information about the user takes a lookup, and belongs in the system prompt: `before_prompt_build` fires once per run,
and the results of its hooks are added to the prompt. `ctx.scratch`, a dict that lives as long as the conversation,
avoids a second lookup. `session_start` fires only for the first run of a session: use it to count or greet new users.
`MemoryInjectionHook` adds what an agent remembers.
"""

from hookline import BEFORE_PROMPT_BUILD, SESSION_START
from hookline import Agent, AgentContext, HookResult, PromptBuild, ScriptedModel, SessionStart, hook, observer


async def look_up(user: str) -> str:
    """Stands for a query to your database."""
    print(f"(looking up {user})")
    return "Ann, an engineer who likes short answers"


@hook(BEFORE_PROMPT_BUILD, priority=80)
async def tell_who_the_user_is(ctx: AgentContext, build: PromptBuild) -> HookResult:
    if "user" not in ctx.scratch:
        ctx.scratch["user"] = await look_up(ctx.state.metadata.get("user", "unknown"))
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
