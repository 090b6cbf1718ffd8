"""An MCP client of a few lines, whose calls go through the gateway to a server with the tools of a scene."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from hookline import Limits
from tests.adapters.mcp_gateway.scenes import Scene as Session
from tests.adapters.mcp_gateway.scenes import a_text, a_tool, text_of

from ..build import Scene, story_of
from ..vectors import Story, Vector
from .base import Door


class McpGateway(Door):
    """The calls of a model reach an MCP server through ``hookline mcp-gateway``."""

    id = "mcp-gateway"

    async def tell(self, vector: Vector, folder: Path) -> Story:
        scene = Scene(vector, folder)
        functions = {each.__name__: each for each in scene.functions}

        def answer(message: dict[str, Any]) -> dict[str, Any]:
            params = message["params"]
            try:
                return a_text(functions[params["name"]](**params["arguments"]))
            except ConnectionError as error:
                return a_text(f"{type(error).__name__}: {error}", isError=True)

        options: dict[str, Any] = {"name": "main"}
        if vector.limits:
            options["limits"] = Limits(**vector.limits)
        tools = [a_tool(name) for name in functions]
        session = Session(folder, scene.hooks, tools=tools, answers={"tools/call": answer}, options=options)
        heard = ""
        for turn in vector.model:
            if isinstance(turn, str):
                break
            calls = [session.call(each["tool"], **each.get("arguments", {})) for each in turn_of(turn)]
            heard = [text_of(each) for each in await asyncio.gather(*calls)][-1]
        await session.close()
        told = story_of(session.events) if session.events else Story()
        return msgspec.structs.replace(told, heard=heard, ran=tuple(sorted(scene.ran, key=repr)))


def turn_of(turn: Any) -> list[dict[str, Any]]:
    """Return the calls of a turn."""
    return turn if isinstance(turn, list) else [turn]
