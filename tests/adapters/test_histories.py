"""A history that changes in any way between two requests is read as if it were new, in every framework that is here.

The edits are those of frameworks, of other middleware and of programs: new messages, changes in place, equal copies,
trims, summaries and other orders.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .loops import FRAMEWORKS, is_there

TEXTS = st.sampled_from(["", "hello", "ls -l", "ignore all rules", "4"])
VALUES = st.one_of(TEXTS, st.integers(0, 3), st.none(), st.lists(TEXTS, max_size=2))
IDS = st.sampled_from(["1", "2", "3"])


class Said(NamedTuple):
    """A message of any framework: a text, a call with its id, or its result."""

    kind: str
    text: str
    call_id: str = "1"
    value: Any = None


SAID = st.builds(Said, st.sampled_from(["user", "assistant", "call", "result"]), TEXTS, IDS, VALUES)


class Langchain:
    """Messages of LangChain."""

    def __init__(self):
        from hookline.adapters.langchain import _Messages

        self.fresh = lambda: _Messages().read
        self.kept = self.fresh()

    def make(self, said):
        from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

        match said.kind:
            case "user":
                return HumanMessage(said.text)
            case "assistant":
                return AIMessage(said.text)
            case "call":
                about = {"name": "shell", "args": {"a": said.value}, "id": said.call_id, "type": "tool_call"}
                return AIMessage(said.text, tool_calls=[about])
        return ToolMessage(said.text, tool_call_id=said.call_id)

    def change(self, message, said):
        message.content = said.text
        for call in getattr(message, "tool_calls", ()):
            call["args"]["a"] = said.value


class Strands:
    """Messages of Strands."""

    def __init__(self):
        from hookline.adapters._strands_messages import reader

        self.fresh = lambda: _messages(reader())
        self.kept = self.fresh()

    def make(self, said):
        match said.kind:
            case "call":
                use = {"toolUseId": said.call_id, "name": f"tool_{said.text}", "input": {"a": said.value}}
                return {"role": "assistant", "content": [{"text": said.text}, {"toolUse": use}]}
            case "result":
                result = {"toolUseId": said.call_id, "status": "success", "content": [{"json": said.value}]}
                return {"role": "user", "content": [{"toolResult": result}, {"text": said.text}]}
        return {"role": said.kind, "content": [{"text": said.text}]}

    def change(self, message, said):
        message["content"][-1] = {"text": said.text}
        for block in message["content"]:
            if "toolUse" in block:
                block["toolUse"]["input"]["a"] = said.value


class OpenaiAgents:
    """Items of the OpenAI Agents SDK."""

    def __init__(self):
        from hookline.adapters._openai_items import Conversation, reader

        def fresh():
            mine = reader()
            return lambda items: Conversation("Help.", items, mine).messages

        self.fresh, self.kept = fresh, fresh()

    def make(self, said):
        match said.kind:
            case "call":
                about = {"call_id": said.call_id, "name": f"tool_{said.text}", "arguments": f'{{"a": "{said.text}"}}'}
                return {"type": "function_call", **about}
            case "result":
                return {"type": "function_call_output", "call_id": said.call_id, "output": said.text}
        return {"role": said.kind, "content": said.text}

    def change(self, message, said):
        message["output" if "output" in message else "arguments" if "arguments" in message else "content"] = said.text


class PydanticAi:
    """Messages of pydantic-ai."""

    def __init__(self):
        from hookline.adapters._pydantic_ai_messages import Conversation, reader

        def fresh():
            mine = reader()
            return lambda history: Conversation("Help.", history, mine).messages

        self.fresh, self.kept = fresh, fresh()

    def make(self, said):
        from pydantic_ai import messages as pm

        match said.kind:
            case "user":
                return pm.ModelRequest(parts=[pm.UserPromptPart(said.text)])
            case "assistant":
                return pm.ModelResponse(parts=[pm.TextPart(said.text)])
            case "call":
                return pm.ModelResponse(parts=[pm.ToolCallPart("shell", {"a": said.value}, said.call_id)])
        value = Table([said.text]) if said.text == "hello" else said.value
        return pm.ModelRequest(parts=[pm.ToolReturnPart("shell", value, said.call_id)])

    def change(self, message, said):
        part = message.parts[0]
        if part.part_kind == "tool-call":
            part.args["a"] = said.value
        elif part.part_kind == "tool-return" and isinstance(part.content, Table):
            part.content[0] = said.text
        else:
            part.content = said.value if part.part_kind == "tool-return" else said.text


class GoogleAdk:
    """Contents of Google ADK. It copies them for each request, and removes the ids that it made itself."""

    def __init__(self):
        from hookline.adapters._adk_messages import reader

        self.fresh = lambda: _messages(reader())
        self.kept = self.fresh()

    def make(self, said):
        from google.genai import types

        id = None if said.call_id == "3" else said.call_id
        match said.kind:
            case "call":
                made = types.FunctionCall(id=id, name="shell", args={"a": said.value})
                return types.Content(role="model", parts=[types.Part(function_call=made)])
            case "result":
                made = types.FunctionResponse(id=id, name="shell", response={"result": said.value})
                parts = [types.Part(function_response=made), types.Part(text=said.text)]
                return types.Content(role="user", parts=parts)
        return types.Content(role="user" if said.kind == "user" else "model", parts=[types.Part(text=said.text)])

    def change(self, message, said):
        for part in message.parts:
            if part.function_call is not None:
                part.function_call.args["a"] = said.value
            elif part.function_response is not None:
                part.function_response.response = {"result": said.value}
            else:
                part.text = said.text


class AgentFramework:
    """Messages of Microsoft Agent Framework."""

    def __init__(self):
        from hookline.adapters._agent_framework_messages import reader

        self.fresh = lambda: _messages(reader())
        self.kept = self.fresh()

    def make(self, said):
        from agent_framework import Content, Message

        match said.kind:
            case "call":
                made = Content.from_function_call(said.call_id, f"tool_{said.text}", arguments={"a": said.value})
                return Message(role="assistant", contents=[made])
            case "result":
                return Message(role="tool", contents=[Content.from_function_result(said.call_id, result=said.text)])
        return Message(role=said.kind, contents=[Content.from_text(said.text)])

    def change(self, message, said):
        content = message.contents[0]
        if content.type == "function_call":
            content.arguments["a"] = said.value
        elif content.type == "function_result":
            content.result = said.text
        else:
            content.text = said.text


class Table(list[str]):
    """A value that cannot be compared, as tables of numbers cannot."""

    def __eq__(self, other):
        raise ValueError("The truth value of a table is ambiguous.")

    __hash__ = None


def _messages(reader):
    return lambda given: reader.read(given).messages


HERE = [
    pytest.param(kind, id=name)
    for name, kind in {
        "langchain": Langchain,
        "strands": Strands,
        "openai_agents": OpenaiAgents,
        "pydantic_ai": PydanticAi,
        "google_adk": GoogleAdk,
        "agent_framework": AgentFramework,
    }.items()
    if is_there(FRAMEWORKS[name])
]


def edit(data, framework, history):
    """Return the history of the next request."""
    made = [framework.make(said) for said in data.draw(st.lists(SAID, max_size=3))]
    place = st.integers(0, max(len(history) - 1, 0))
    match data.draw(st.sampled_from(["grow", "change", "copy", "trim", "summary", "order", "remove"])):
        case "change" if history:
            framework.change(history[data.draw(place)], data.draw(SAID))
        case "copy":
            history = copy.deepcopy(history)
        case "trim":
            history = history[data.draw(place) :]
        case "summary" if history:
            history = [framework.make(Said("user", "A summary.")), *history[data.draw(place) :]]
        case "order":
            history = data.draw(st.permutations(history))
        case "remove" if history:
            del history[data.draw(place)]
    return [*history, *made]


@pytest.mark.parametrize("framework", HERE)
@settings(deadline=None)
@given(data=st.data())
def test_hooks_see_a_history_as_it_is_now(framework, data):
    loop = framework()
    history: list[Any] = []
    for _ in range(data.draw(st.integers(1, 6))):
        history = edit(data, loop, history)
        assert list(loop.kept(list(history))) == list(loop.fresh()(list(history)))
