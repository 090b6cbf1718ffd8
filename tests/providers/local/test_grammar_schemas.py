"""Schemas for grammars: any schema becomes one that llama.cpp supports."""

import json
from datetime import date
from enum import Enum
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter

from hookline.payloads import ToolSpec
from hookline.providers.local.grammar_schemas import example as example_of
from hookline.providers.local.grammar_schemas import reply_schema, simple_schema, text_schema

KNOWN = {
    "additionalProperties",
    "anyOf",
    "const",
    "enum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maximum",
    "minItems",
    "minLength",
    "minimum",
    "properties",
    "required",
    "type",
}
NUMBERS = st.one_of(st.integers(), st.floats(), st.booleans(), st.text(max_size=2), st.integers(-3, 3))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("abü", max_size=3), inner, max_size=2),
    max_leaves=3,
)
NAMES = st.text('abc._-ü日 "\\/~', max_size=4)


def schemas():
    simple = st.fixed_dictionaries(
        {"type": st.sampled_from(["string", "number", "integer", "boolean", "null", "array", "object", "file"])},
        optional={
            "minLength": NUMBERS,
            "maxLength": NUMBERS,
            "minimum": NUMBERS,
            "maximum": NUMBERS,
            "minItems": NUMBERS,
            "maxItems": NUMBERS,
            "format": st.sampled_from(["date", "uuid", "color", "uri"]),
            "pattern": st.just("^(?!a)"),
            "title": st.text("ab"),
            "multipleOf": NUMBERS,
            "x-own": VALUES,
        },
    )
    leaves = st.one_of(
        simple,
        st.booleans(),
        st.just({}),
        st.builds(lambda value: {"const": value}, VALUES),
        st.builds(lambda values: {"enum": values}, st.lists(VALUES, max_size=3)),
        st.builds(lambda name: {"$ref": f"#/$defs/{name}"}, st.sampled_from(["a", "b", "missing"])),
        st.sampled_from([{"$ref": "#"}, {"$ref": "https://example.com/schema"}, {"$ref": 3}]),
        st.builds(lambda kinds: {"type": kinds}, st.lists(st.sampled_from(["string", "null", "integer"]), max_size=3)),
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(
                lambda key, some: {key: some},
                st.sampled_from(["anyOf", "oneOf", "allOf"]),
                st.lists(inner, max_size=3),
            ),
            st.builds(lambda items: {"type": "array", "items": items}, inner),
            st.builds(
                lambda properties, needed, more: {
                    "type": "object",
                    "properties": properties,
                    "required": [*needed, *list(properties)[:1]],
                    **more,
                },
                st.dictionaries(NAMES, inner, max_size=3),
                st.lists(NAMES, max_size=2),
                st.fixed_dictionaries({}, optional={"additionalProperties": inner}),
            ),
            st.builds(
                lambda schema, broken: {**schema, **broken} if isinstance(schema, dict) else schema,
                inner,
                st.dictionaries(st.sampled_from(sorted(KNOWN)), VALUES, max_size=1),
            ),
        ),
        max_leaves=6,
    )


def whole_schemas():
    """With definitions, which may refer to each other and to themselves."""
    return st.builds(
        lambda schema, a, b: {**(schema if isinstance(schema, dict) else {}), "$defs": {"a": a, "b": b}},
        schemas(),
        schemas(),
        schemas(),
    )


def assert_plain(shape):
    assert set(shape) <= KNOWN
    if "type" in shape:
        assert shape["type"] in ("string", "number", "integer", "boolean", "null", "array", "object")
    inner = [*shape.get("anyOf", ()), *shape.get("properties", {}).values()]
    inner += [shape[key] for key in ("items", "additionalProperties") if isinstance(shape.get(key), dict)]
    for part in inner:
        assert_plain(part)


def greedy(engine, schema, max_tokens):
    """Return the model's output under a schema; prose if llama.cpp dropped it."""
    pieces = []

    def take(chunk):
        assert "error" not in chunk
        pieces.extend(choice["delta"].get("content") or "" for choice in chunk["choices"])
        return False

    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": max_tokens, "temperature": 0, "stream": True}
    engine._server.handle_chat_completions({**body, "grammar": engine.grammar(schema)}, take)
    return "".join(pieces)


@given(whole_schemas())
@example({"$ref": "#"})
@example({"type": "array", "items": {"$ref": "#"}})
@example({"anyOf": 3, "enum": "abc", "type": {"a": 1}, "properties": [], "required": 5})
@example({"type": "integer", "minimum": 10**400})
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_any_schema_becomes_a_simple_one(schema):
    shape = simple_schema(schema)
    assert_plain(shape)
    json.dumps(shape)
    json.dumps(example_of(schema))


@given(whole_schemas())
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
def test_any_tool_gives_a_grammar_that_llama_cpp_accepts(engine, schema):
    tool = ToolSpec("do", "", {"type": "object", "properties": {"x": schema}, "$defs": schema["$defs"]})
    assert greedy(engine, reply_schema((tool,), may_answer=False), 2).startswith('{"')


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": -1},
        {"type": "string", "minLength": 2.0},
        {"type": "string", "maxLength": 10**12},
        {"type": "string", "format": "date", "maxLength": 3},
        {"type": "integer", "minimum": 0.5, "maximum": 0.6},
        {"type": "integer", "minimum": True},
        {"type": "integer", "minimum": -(2**63)},
        {"type": "number", "minimum": 1e300},
        {"type": "number", "minimum": 1e-300},
        {"type": "array", "items": {"type": "integer"}, "maxItems": 10**9},
    ],
    ids=json.dumps,
)
def test_limits_that_a_grammar_cannot_express_are_dropped(engine, schema):
    assert greedy(engine, text_schema(schema), 1)[0] in '"[-0123456789'


def test_limits_that_a_grammar_can_express_are_kept():
    assert simple_schema({"type": "integer", "maximum": -5}) == {"type": "integer", "maximum": -5}
    assert simple_schema({"type": "integer", "minimum": 0.5, "maximum": 2.5}) == {
        "type": "integer",
        "minimum": 1,
        "maximum": 2,
    }
    assert simple_schema({"type": "number", "minimum": 0, "maximum": 0}) == {
        "type": "number",
        "minimum": 0,
        "maximum": 0,
    }
    assert simple_schema({"type": "string", "minLength": 2, "maximum": 3}) == {"type": "string", "minLength": 2}
    assert simple_schema({"type": "array", "minItems": 3, "maxItems": 2}) == {"type": "array", "items": {}}


def test_a_recursive_reference_does_not_make_the_schema_explode():
    node = {"type": "object", "properties": {f"child{n}": {"$ref": "#/$defs/node"} for n in range(20)}}
    shape = simple_schema({"$ref": "#/$defs/node", "$defs": {"node": node}})
    assert shape["properties"]["child0"]["properties"]["child19"] == {}
    assert len(json.dumps(shape)) < 20_000


def test_references_with_slashes_are_resolved():
    assert simple_schema({"$ref": "#/$defs/a~1b~0c", "$defs": {"a/b~c": {"type": "null"}}}) == {"type": "null"}


class Color(Enum):
    RED, BLUE = "red", "blue"


class Point(BaseModel):
    x: int = Field(ge=10, le=99)
    label: str | None = None


class Node(BaseModel):
    value: int
    children: list["Node"]


class Circle(BaseModel):
    kind: Literal["circle"]


class Square(BaseModel):
    kind: Literal["square"]


class Trip(BaseModel):
    color: Color
    stops: list[Point]


@pytest.mark.parametrize(
    ("kind", "begins"),
    [
        (Point, '{"x": '),
        (Trip, '{"color": "'),
        (Node, '{"value": '),
        (date, '"'),
        (Color, '"'),
        (Literal["left", "right"], '"'),
        (Circle | Square, '{"kind": "'),
        (dict[str, Any], "{"),
        (list[Point], "["),
        (int | None, None),
        (tuple[int, str], "["),
        (dict[str, list[date]], "{"),
        (int | list[str], None),
        (Any, None),
    ],
    ids=str,
)
def test_the_model_writes_only_what_the_type_allows(engine, kind, begins):
    adapter = TypeAdapter(kind)
    text = greedy(engine, text_schema(adapter.json_schema()), 8)
    assert text.startswith(begins) if begins else text[0] in '{["-0123456789tfn'
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return  # cut off
    if kind != tuple[int, str]:  # `prefixItems` is not supported
        adapter.validate_python(value)


def test_the_grammar_fixes_the_whitespace(engine):
    text = greedy(engine, text_schema({"const": {"a": [1, 2]}}), 30)
    assert text == '{"a": [1, 2]}'


def test_only_the_named_branches_can_be_written(engine):
    tools = (ToolSpec("näh.en", "", {}), ToolSpec('sa"y', "", {"type": "object", "properties": {}}))
    assert greedy(engine, reply_schema(tools, may_answer=False), 4).startswith('{"tool": "')
    assert greedy(engine, reply_schema((), may_answer=True), 5).startswith('{"answer": "')
    written = greedy(engine, reply_schema(tools[:1], may_answer=False), 20)
    assert json.loads(written) == {"tool": "näh.en", "arguments": {}}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "object", "properties": {"n": {"minimum": 3, "type": "integer"}}, "required": ["n"]}, {"n": 3}),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"enum": ["x", "y"]}}}, "x"),
        ({"type": "array", "items": {"type": "boolean"}}, [True]),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, None),
        ({"default": 5}, 5),
        (TypeAdapter(Node).json_schema(), {"value": 1, "children": [{"value": 1, "children": ["..."]}]}),
    ],
)
def test_an_example_matches_the_schema(schema, value):
    assert example_of(schema) == value
