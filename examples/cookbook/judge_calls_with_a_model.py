"""Let a second model judge tool calls.

Some rules cannot be written as code: "nothing that would embarrass us". This guard shows each mail to a model, and
blocks the mail unless the model finds it harmless. `ctx.llm` calls the model of the run, through the same hooks and
budget; `ctx.llm.using(other)` would call another model.
"""

import re

from hookline import BEFORE_TOOL, Agent, AgentContext, HookResult, ScriptedModel, ToolCallRequest, call, guard, tool

QUESTION = "Would this mail embarrass its sender? Begin your answer with yes or no.\n\n"


@guard(BEFORE_TOOL, tools="send_mail")
async def judge_mails(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
    assert ctx.llm is not None
    judgement = await ctx.llm.complete(QUESTION + request.arguments["text"], purpose="judge")
    if re.match(r"no\b", judgement.content, re.IGNORECASE):
        return None
    return HookResult.block(f"Not sent. {judgement.content}", reason="the judge found it embarrassing")


@tool
def send_mail(to: str, text: str) -> str:
    """Send a mail."""
    return f"sent to {to}"


if __name__ == "__main__":
    llm = ScriptedModel(
        [
            call("send_mail", to="all", text="Your idea is rubbish."),
            "Yes, it is rude.",  # the judge
            call("send_mail", to="all", text="Thank you for the idea."),
            "No.",  # the judge
            "I thanked them.",
        ]
    )
    result = Agent("secretary", llm=llm, tools=[send_mail], hooks=[judge_mails]).run("Answer the idea.")
    print(*(message.content for message in result.messages if message.role == "tool"), sep="\n")

# prints:
# Not sent. Yes, it is rude.
# sent to all
