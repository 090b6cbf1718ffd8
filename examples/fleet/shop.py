"""Tools of a shop. Its warehouse and its bank are files here; a real one gets ``ctx.call_key`` as idempotency key."""

import asyncio
import os
from pathlib import Path

from hookline import AgentContext, tool

FOLDER = Path(os.environ.get("SHOP_FOLDER", "/data"))
SECONDS = float(os.environ.get("SHOP_SECONDS", "3"))
"""How long a parcel takes, so that there is time to kill a worker meanwhile."""


@tool(effects=["network"])
async def ship(item: str, ctx: AgentContext) -> str:
    """Send an item to the customer."""
    parcel = FOLDER / "parcels" / ctx.call_key
    parcel.parent.mkdir(parents=True, exist_ok=True)
    parcel.write_text(item)  # the same key again is the same parcel
    await asyncio.sleep(SECONDS)
    return f"{item} is on its way."


@tool(effects=["network"], repeatable=False)
def pay_back(amount: int, ctx: AgentContext) -> str:
    """Pay money back to the customer."""
    with (FOLDER / "paid.txt").open("a") as file:
        file.write(f"{ctx.call_key} {amount}\n")
    return f"{amount} euros are paid back."
