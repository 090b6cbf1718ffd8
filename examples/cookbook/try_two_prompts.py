"""Compare two system prompts.

Half of the sessions get prompt A and half get prompt B, and a session keeps its prompt. The hook counts the status of
each run, so that you see which prompt works better. `override_system` replaces the instructions of the agent.
"""

import zlib
from collections import Counter

from hookline import BEFORE_PROMPT_BUILD, ON_RUN_END
from hookline import Agent, AgentContext, AgentResult, HookResult, ModelRequest, ScriptedModel, Session


class TryTwoPrompts:
    points = frozenset({BEFORE_PROMPT_BUILD, ON_RUN_END})
    phase = {ON_RUN_END: "observe"}

    def __init__(self, **prompts: str) -> None:
        self.prompts = prompts
        self.seen: Counter[tuple[str, str]] = Counter()

    def __call__(self, point: str, ctx: AgentContext, payload: object) -> HookResult | None:
        names = sorted(self.prompts)
        name = names[zlib.crc32(ctx.session.id.encode()) % len(names)]
        if isinstance(payload, AgentResult):
            self.seen[name, payload.status] += 1
            return None
        return HookResult.merge(override_system=self.prompts[name])


try_two_prompts = TryTwoPrompts(a="Answer in one sentence.", b="Think aloud, then answer.")


def model(request: ModelRequest) -> str:
    return "" if "aloud" in request.messages[0].content else "42."  # prompt b fails


if __name__ == "__main__":
    agent = Agent("helper", llm=ScriptedModel([model], loop=True), hooks=[try_two_prompts])
    for number in range(20):
        agent.run("What is it?", session=Session(f"user-{number}"))
    for (name, status), count in sorted(try_two_prompts.seen.items()):
        print(f"prompt {name}: {count} {status}")

# prints:
# prompt a: 12 completed
# prompt b: 8 stopped
