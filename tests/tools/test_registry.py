"""The tools of a run, by name."""

import pytest

from hookline import Agent, RegistrationError, RunFailedError, ScriptedModel, call, tool
from hookline.hooks import TimingHook
from hookline.payloads import ToolSpec
from hookline.tools import Tool, ToolRegistry


@tool
def read_file(path: str) -> str:
    """Read a file."""
    return path


def write_file(path: str, text: str): ...


def test_tools_are_found_by_name_in_the_order_given():
    registry = ToolRegistry([read_file, write_file])
    assert [made.name for made in registry] == ["read_file", "write_file"]
    assert registry.get("read_file") is read_file
    assert isinstance(registry.get("write_file"), Tool)
    assert registry.get("delete") is None
    assert "read_file" in registry
    assert "delete" not in registry
    assert len(registry) == 2
    assert len(ToolRegistry()) == 0


def test_the_model_sees_every_tool():
    specs = ToolRegistry([read_file, write_file]).specs
    assert [type(spec) for spec in specs] == [ToolSpec, ToolSpec]
    assert [(spec.name, spec.description) for spec in specs] == [("read_file", "Read a file."), ("write_file", "")]
    assert list(specs[1].parameters["properties"]) == ["path", "text"]


def test_specs_are_created_once():
    registry = ToolRegistry([read_file])
    assert registry.specs is registry.specs


def test_a_tool_may_offer_another_spec_in_each_step():
    seen = []

    def offer(ctx):
        seen.append(ctx)
        return ToolSpec("live", f"Told {len(seen)} times.", {}) if len(seen) < 3 else None

    live = Tool(write_file, name="live", offer=offer)
    model = ScriptedModel([call("read_file", path="a"), call("live", path="a", text="b"), "done"])
    Agent("a", llm=model, tools=[read_file, live]).run("go")
    offered = [{spec.name: spec.description for spec in request.tools} for request in model.requests]
    assert offered == [
        {"read_file": "Read a file.", "live": "Told 1 times."},
        {"read_file": "Read a file.", "live": "Told 2 times."},
        {"read_file": "Read a file."},
    ]
    assert {ctx.agent_name for ctx in seen} == {"a"}


def test_an_offer_that_fails_fails_the_run_and_names_the_tool():
    model = ScriptedModel(["never"])
    agent = Agent("a", llm=model, tools=[Tool(write_file, offer=lambda ctx: 1 / 0)])
    with pytest.raises(RunFailedError, match="tool 'write_file' cannot be offered: ZeroDivisionError") as failed:
        agent.run("go")
    (error,) = failed.value.result.errors
    assert (error.where, error.fatal) == ("tool", True)
    assert not model.requests


def test_two_tools_of_the_same_name_are_rejected():
    with pytest.raises(RegistrationError, match="two tools are named 'read_file'; rename one of them"):
        ToolRegistry([read_file, Tool(write_file, name="read_file")])


def test_a_hook_among_the_tools_is_rejected_with_advice():
    with pytest.raises(RegistrationError, match=r"TimingHook is a hook: pass it as hooks=\[...\]"):
        ToolRegistry([TimingHook()])


@pytest.mark.parametrize("bad", ["read_file", 3, None, dict])
def test_an_object_that_is_not_a_tool_is_rejected(bad):
    with pytest.raises(RegistrationError, match="is not a tool: decorate a function with @tool"):
        ToolRegistry([bad])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raed_file", "Unknown tool 'raed_file'. Did you mean 'read_file'? Available tools: read_file, write_file."),
        ("zzz", "Unknown tool 'zzz'. Available tools: read_file, write_file."),
        ("", "The tool name is empty. Available tools: read_file, write_file."),
    ],
)
def test_a_call_of_an_unknown_tool_lists_the_available_ones(name, message):
    assert ToolRegistry([read_file, write_file]).unknown(name) == message


def test_a_call_without_any_tools_says_there_are_none():
    assert ToolRegistry().unknown("x") == "Unknown tool 'x'. Available tools: none."


def test_a_very_long_name_is_cut():
    assert len(ToolRegistry([read_file]).unknown("x" * 5000)) < 200
