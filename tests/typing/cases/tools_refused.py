"""Mistakes with tools that type checkers report."""

from hookline import tool
from hookline.tools import Sandbox, shell_tool


@tool
def add(a: int, b: int = 2) -> int:
    return a + b


@tool(timeout=3)
async def search(query: str) -> list[str]:
    return [query]


@tool(timout=3)  # error: mypy, pyright
def misspelt_option(a: int) -> int:
    return a


@tool(effects=["writes"])  # error: mypy, pyright
def misspelt_effect(a: int) -> int:
    return a


add("1")  # error: mypy, pyright
add(1, c=3)  # error: mypy, pyright
add()  # error: mypy, pyright
text: str = add(1)  # error: mypy, pyright

shell_tool(".", sandbox="none")  # error: mypy, pyright
Sandbox("off")  # error: mypy, pyright
Sandbox(writeable=["build"])  # error: mypy, pyright


async def call_tools() -> None:
    await add(1)  # error: mypy, pyright
    await search(3)  # error: mypy, pyright
    add((await search("x"))[0])  # error: mypy, pyright
