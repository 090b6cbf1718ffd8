"""Redact a reply while it is streamed.

A hook that only rewrites at `after_llm` holds all text until the reply is complete. To redact text while it streams, a
hook judges `on_token` too: that changes what people see, `after_llm` what is recorded. The end of an address may come
with a later chunk, so the hook holds back the last word until it is complete; the chunk marked `final` brings the rest.
`SensitiveDataHook` does this for many kinds of data.
"""

import asyncio
import re

from hookline import AFTER_LLM, ON_TOKEN, Agent, AgentContext, HookResult, ModelReply, ScriptedModel, TokenDelta
from hookline.events import TextDelta


def clean(text: str) -> str:
    return re.sub(r"[\w.+-]+@[\w.-]*\w", "[address]", text)


class RedactWhileStreaming:
    points = frozenset({ON_TOKEN, AFTER_LLM})
    priority = 50

    def __call__(self, point: str, ctx: AgentContext, payload: TokenDelta | ModelReply) -> HookResult | None:
        if isinstance(payload, ModelReply):
            content = clean(payload.content)
            return HookResult.replace(payload.replace(content=content)) if content != payload.content else None
        shown = ctx.own_state(self, dict[int, int])  # number of characters shown of each reply
        whole = payload.text if payload.final else payload.text[: payload.text.rfind(" ") + 1]
        already = shown.get(payload.generation, 0)
        shown[payload.generation] = len(clean(whole))
        return HookResult.replace(payload.replace(delta=clean(whole)[already:]))


redact_while_streaming = RedactWhileStreaming()


async def main() -> None:
    agent = Agent("desk", llm=ScriptedModel(["Write to ann@example.com or to Ben."]), hooks=[redact_while_streaming])
    async for event in agent.stream("Whom do I write to?"):
        if isinstance(event, TextDelta):
            print(event.text, end="|")
    print()


if __name__ == "__main__":
    asyncio.run(main())

# prints:
# Write |to |[address] |or |to |Ben.|
