"""The JSON schema of records: it matches the format, and recorded lines match it."""

import json
from importlib.resources import files

import jsonschema
import pytest

from hookline import (
    APPROVAL_REQUESTED,
    BEFORE_LLM,
    BEFORE_TOOL,
    Agent,
    HookResult,
    ScriptedModel,
    call,
    guard,
    hook,
    reply,
    tool,
)
from hookline.records import RecordHook
from hookline.records.schema import record_schema, schema_text


@tool(effects=[])
def add(a: int, b: int = 2) -> int:
    """Add."""
    return a + b


@pytest.fixture(scope="module")
def validator():
    jsonschema.Draft202012Validator.check_schema(record_schema())
    return jsonschema.Draft202012Validator(record_schema())


def test_the_file_for_other_programs_is_up_to_date():
    assert files("hookline.records").joinpath("schema.json").read_text() == schema_text()


def test_every_recorded_line_matches_the_schema(tmp_path, validator):
    @hook(BEFORE_LLM)
    def note(ctx, request):
        return request.replace(messages=(*request.messages, {"role": "user", "content": "Be brief."}))

    @guard(BEFORE_TOOL, on_failure="open")
    def judge(ctx, request):
        a = request.arguments.get("a")
        if a == 1:
            return HookResult.ask("One?", state=ctx.state.with_metadata(asked=True))
        if a == 2:
            raise ValueError("two")
        return HookResult.block("no") if a == 3 else None

    @hook(APPROVAL_REQUESTED)
    def ann(ctx, request):
        return HookResult.approve(by="ann")

    inner = Agent("inner", llm=ScriptedModel([reply("inside")]))

    @tool(effects=[])
    async def ask() -> str:
        """Ask another agent."""
        return (await inner.arun("Inner")).reply

    turns = [*(call("add", a=number) for number in range(5)), call("add", a="x"), call("ask"), reply("done")]
    agent = Agent(
        "x", llm=ScriptedModel(turns), tools=[add, ask], hooks=[note, judge, ann],
        record=RecordHook(tmp_path, points="all"), instructions="Be nice.",
    )  # fmt: skip
    agent.run("Add jane.roe@example.org", metadata={"user": {"name": "Jane"}})
    (file,) = tmp_path.glob("*.moments")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert {line[0] for line in lines} >= {
        "hookline",
        "hooks",
        "run",
        "end",
        "label",
        "before_tool",
        "approval_decided",
    }
    for line in lines:
        validator.validate(line)


@pytest.mark.parametrize(
    "line",
    [
        {},
        [],
        ["run"],
        ["run", "zero", {}],
        ["hookline", {"format": "one"}],
        ["label", "add", 0, 3, {"label": "maybe"}],
        ["before_tool", "add", 0, 1, 0.1, 0, {"arguments": 3}],
        ["before_tool", "add", 0, 1, 0.1],
        ["before_llm", "", 0, 1, 0.1, 0, {"messages": [{"role": "nobody"}]}],
        ["on_stop", "", 0, 1, 0.1, 0, {}, None, None, {"inexact": "odd"}],
    ],
)
def test_other_lines_do_not_match(validator, line):
    assert not validator.is_valid(line)


def test_moments_of_points_of_a_program_match(validator):
    assert validator.is_valid(["my_point", "", 0, 1, 0.1, 0, {"anything": [1]}])
