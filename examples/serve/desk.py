"""Tools to check and deploy two services."""

import asyncio
from typing import Annotated

from pydantic import Field

from hookline import AgentContext, tool

VERSIONS = {"shop": 41, "search": 7}
SECONDS = 0.4

Service = Annotated[str, Field(examples=["shop"])]


@tool(effects=["read"])
def status(service: Service) -> str:
    """Tell which version of a service runs."""
    return f"{service} runs version {VERSIONS[service]}."


@tool(effects=["network"])
async def deploy(service: Service, ctx: AgentContext) -> str:
    """Deploy the next version of a service."""
    stages = ("building", "testing", "switching over")
    for number, stage in enumerate(stages):
        ctx.progress(number / len(stages), f"{stage} {service}")
        await asyncio.sleep(SECONDS)
    VERSIONS[service] += 1
    return f"{service} runs version {VERSIONS[service]} now."
