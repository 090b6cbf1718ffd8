"""Programs with a loop of their own: one of a few lines, which asks ``POST /decide`` about each moment."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hookline.payloads import Message, ModelRequest
from tests.server.http_rig import events_in

from ..build import TASK, story_of_json
from ..vectors import Story, Vector
from .served import Served


class StoppedError(Exception):
    """The server said that the run must not go on."""


class FailedError(Exception):
    """The model failed."""


class Decide(Served):
    """A loop that knows nothing of hooks, and does what the answers say."""

    id = "decide"

    async def tell(self, vector: Vector, folder: Path) -> Story:
        scene = self.scenes[vector.id]
        host = Host(self, vector.id)
        try:
            await host.run()
        except StoppedError:
            await host.ask("on_run_end", reply="")
        except FailedError as failed:
            await host.ask("on_run_end", reply="", errors=[failed.args[0]])
        answer = await self.client.get(f"/runs/{host.run_id}/events", headers={"accept": "text/event-stream"})
        return scene.executed(story_of_json(events_in(answer.text)))


class Host:
    """The loop."""

    def __init__(self, door: Decide, session: str) -> None:
        self.door, self.session = door, session
        self.scene = door.scenes[session]
        self.messages: list[dict[str, Any]] = []
        self.run_id = ""

    async def ask(self, point: str, **payload: Any) -> dict[str, Any]:
        """Return the answer to a question."""
        wait = {"wait": 30} if point == "before_tool" else {}
        body = {"point": point, "session": self.session, "agent": self.door.names[self.session], "payload": payload}
        answer = await self.door.client.post("/decide", json=body | wait)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        self.run_id = found["run"]
        return found

    async def may(self, point: str, **payload: Any) -> dict[str, Any]:
        """Return the payload of an answer that lets the run go on."""
        answer = await self.ask(point, **payload)
        if answer["action"] != "allow":
            raise StoppedError
        found: dict[str, Any] = answer["payload"]
        return found

    async def run(self) -> None:
        """Play the turns of the model."""
        begun = await self.ask("on_run_start", task=TASK)
        if begun["action"] != "allow":
            raise StoppedError
        if begun["system_prompt"]:
            self.messages.append({"role": "system", "content": begun["system_prompt"]})
        self.messages.append({"role": "user", "content": begun["payload"]["task"]})
        index = 0
        while True:
            await self.may("before_step", index=index)
            reply = await self.reply()
            self.messages.append({"role": "assistant", "content": reply["content"], "tool_calls": reply["tool_calls"]})
            for call in reply["tool_calls"]:
                text = await self.call(call)
                self.messages.append({"role": "tool", "content": text, "call_id": call["id"]})
            await self.may("after_step", index=index, tool_names=[call["name"] for call in reply["tool_calls"]])
            index += 1
            if not reply["tool_calls"]:
                ended = await self.ask("on_run_end", reply=reply["content"])
                if ended["action"] != "keep_going":
                    return
                self.messages.append({"role": "user", "content": ended["note"]})

    async def reply(self) -> dict[str, Any]:
        """Return the reply of the model, after all attempts."""
        extra: list[dict[str, Any]] = []
        while True:
            tools = [{"name": each.__name__} for each in self.scene.functions]
            answer = await self.ask("before_llm", messages=[*self.messages, *extra], tools=tools)
            if answer["action"] == "answer":
                return dict(answer["value"])
            if answer["action"] != "allow":
                raise StoppedError
            messages = answer["payload"]["messages"]
            try:
                turn = await self.scene.model.complete(ModelRequest([Message.of(each) for each in messages]))
            except ConnectionError as error:
                info = {"where": "model", "type": type(error).__name__, "message": str(error), "fatal": True}
                decided = await self.ask("on_error", errors=[info], where="model", fatal=True)
                if decided["action"] == "answer":
                    return dict(decided["value"])
                if decided["action"] != "retry":
                    raise FailedError(info) from error
                continue
            calls = [{"id": each.id, "name": each.name, "arguments": each.arguments} for each in turn.tool_calls]
            usage = {"input_tokens": turn.usage.input_tokens, "output_tokens": turn.usage.output_tokens}
            await self.show(turn.content)
            judged = await self.ask("after_llm", content=turn.content, tool_calls=calls, usage=usage)
            if judged["action"] == "allow":
                return dict(judged["payload"])
            if judged["action"] != "retry":
                raise StoppedError
            extra = [{"role": "assistant", "content": turn.content}, {"role": "user", "content": judged["note"]}]

    async def show(self, text: str) -> None:
        """Show a text as hooks let it be shown, piece by piece."""
        seen = ""
        for piece in re.findall(r"\s*\S+", text):
            seen += piece
            await self.may("on_token", delta=piece, text=seen)
        if text:
            await self.may("on_token", delta="", text=seen, final=True)

    async def call(self, call: dict[str, Any]) -> str:
        """Return what the model reads about a call."""
        judged = await self.ask("before_tool", **call)
        if judged["action"] == "answer":
            return str(judged["value"])
        if judged["action"] == "block":
            return str(judged["reason"])
        if judged["action"] != "allow":
            raise StoppedError
        final = judged["payload"]
        function = next(each for each in self.scene.functions if each.__name__ == final["name"])
        try:
            result = {"result": function(**final["arguments"])}
        except ConnectionError as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        settled = await self.ask("after_tool", **{**final, **result})
        if settled["action"] == "retry":
            return await self.call(call)
        if settled["action"] != "allow":
            raise StoppedError
        return str(settled["payload"]["error"] or settled["payload"]["result"])
