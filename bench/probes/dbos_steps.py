"""Measure the steps of DBOS: each call of a model or a tool is one. Its environment has DBOS and not Hookline.

python bench/probes/dbos_steps.py '{"url": "sqlite:////tmp/steps.db", "steps": 50, "reps": 3}'
"""

import asyncio
import json
import sys
import time

from dbos import DBOS

options = json.loads(sys.argv[1])
found: list[float] = []


@DBOS.step()
async def ask(messages: list[dict[str, str]]) -> dict[str, str]:
    return {"role": "assistant", "content": "", "call": '{"a": 1, "b": 2}'}


@DBOS.step()
async def add(a: int, b: int) -> dict[str, str]:
    return {"role": "tool", "content": "3"}


@DBOS.workflow()
async def run(steps: int) -> str:
    messages = [{"role": "user", "content": "Add the numbers."}]
    for _ in range(steps - 1):
        messages.append(await ask(messages))
        messages.append(await add(1, 2))
    return (await ask(messages))["role"]


async def main() -> None:
    await run(options["steps"])
    for _ in range(options["reps"]):
        began = time.perf_counter()
        await run(options["steps"])
        found.append((time.perf_counter() - began) * 1e3 / (2 * options["steps"] - 1))


DBOS(config={"name": "bench", "system_database_url": options["url"], "log_level": "ERROR"})
DBOS.launch()
asyncio.run(main())
DBOS.destroy()
print(json.dumps({"times": found}))
