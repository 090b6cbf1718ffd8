"""Tools: the schema from a function, readable errors, private values, results as JSON."""

import asyncio
import dataclasses
import datetime
import decimal
import enum
import functools
import json
import os
import pathlib
import threading
import uuid
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, NewType, Optional, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, WithJsonSchema
from typing_extensions import TypeAliasType, TypedDict

from hookline import RegistrationError, ToolCallResult, call, reply, tool
from hookline._base.frozen import FrozenDict, freeze
from hookline.plugins import Plugin
from hookline.stores import RunStore
from hookline.tape import TapeHook
from hookline.testing import scripted_agent
from hookline.tools import Effect, Tool
from hookline.tools._tool import CheckedArguments, jsonable
from hookline.tools.arguments import paths_in
from tests.cases import each_case


class Unit(enum.Enum):
    CELSIUS = "c"
    FAHRENHEIT = "f"


class Place(BaseModel):
    city: str = Field(description="The city.")
    zip: int | None = None


def weather(city: str, days: int = 1, unit: Literal["c", "f"] = "c") -> str:
    """Tell the weather.

    It is always fine.

    Args:
        city: Where.
        days: How far
            ahead.
    """
    return f"{city} {days} {unit}"


def props(fn, **options):
    return Tool(fn, **options).spec.parameters["properties"]


def checked(made, arguments):
    """Return the values of valid arguments."""
    result = made.validate(arguments)
    assert isinstance(result, CheckedArguments), result
    return result


def both(good):
    """Return the JSON that guards see, and the values that the function gets."""
    return good.arguments, good.values


def problem(made, arguments):
    """Return the error text for invalid arguments."""
    result = made.validate(arguments)
    assert isinstance(result, str), result
    return result


# Schema


def test_the_schema_comes_from_signature_hints_and_docstring():
    spec = Tool(weather).spec
    assert (spec.name, spec.description) == ("weather", "Tell the weather.\n\nIt is always fine.")
    assert spec.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where."},
            "days": {"type": "integer", "description": "How far\nahead.", "default": 1},
            "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
        },
        "required": ["city"],
        "additionalProperties": False,
    }


def case_optional(x: Optional[int] = None, y: int | None = None): ...  # noqa: UP045
def case_enum(unit: Unit = Unit.CELSIUS): ...
def case_list(tags: list[str] = ["a"]): ...
def case_annotated(n: Annotated[int, Field(ge=1, le=9, description="Lucky.")]): ...
def case_none(x, y=3): ...
def case_any(x: Any): ...
def case_path(where: pathlib.Path): ...
def case_date(day: datetime.date): ...


@pytest.mark.parametrize(
    ("fn", "properties", "required"),
    [
        (
            case_optional,
            {name: {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None} for name in "xy"},
            None,
        ),
        (case_list, {"tags": {"type": "array", "items": {"type": "string"}, "default": ["a"]}}, None),
        (case_annotated, {"n": {"type": "integer", "minimum": 1, "maximum": 9, "description": "Lucky."}}, ["n"]),
        (case_none, {"x": {}, "y": {"default": 3}}, ["x"]),
        (case_any, {"x": {}}, ["x"]),
        (case_path, {"where": {"type": "string", "format": "path"}}, ["where"]),
        (case_date, {"day": {"type": "string", "format": "date"}}, ["day"]),
    ],
)
def test_kinds_of_parameters(fn, properties, required):
    schema = Tool(fn).spec.parameters
    assert schema["properties"] == properties
    assert schema.get("required") == required


def test_enums_show_their_values_and_default():
    schema = Tool(case_enum).spec.parameters
    unit = schema["properties"]["unit"]
    assert unit["default"] == "c"
    assert '"enum":["c","f"]' in json.dumps(schema, separators=(",", ":"))


def test_nested_models_are_described():
    def visit(place: Place, others: list[Place] = []): ...

    schema = Tool(visit).spec.parameters
    (definition,) = schema["$defs"].values()
    assert definition["properties"]["city"] == {"type": "string", "description": "The city."}
    assert definition["required"] == ["city"]
    assert schema["properties"]["others"]["items"] == schema["properties"]["place"]


def test_a_function_without_docstring_or_parameters_has_an_empty_schema():
    def ping(): ...

    spec = Tool(ping).spec
    assert spec.description == ""
    assert spec.parameters == {"type": "object", "properties": {}, "additionalProperties": False}


def test_a_description_in_the_hint_beats_the_docstring():
    def f(x: Annotated[int, Field(description="From the hint.")], y: Annotated[int, Field(ge=1)]):
        """F.

        Args:
            x: From the docstring.
            y: At least one.
        """

    assert props(f) == {
        "x": {"type": "integer", "description": "From the hint."},
        "y": {"type": "integer", "minimum": 1, "description": "At least one."},
    }


@pytest.mark.parametrize(
    "doc",
    [
        "Do it.\n\n:param x: How much.\n",
        "Do it.\n\nParameters\n----------\nx : int\n    How much.\n",
        "Do it.\n\nArgs:\n    x (int): How much.\n",
    ],
    ids=["rest", "numpy", "google"],
)
def test_every_common_docstring_style_is_read(doc):
    def f(x: int): ...

    f.__doc__ = doc
    spec = Tool(f).spec
    assert spec.description == "Do it."
    assert spec.parameters["properties"]["x"]["description"] == "How much."


def test_the_context_is_not_shown_to_the_model():
    def f(x: int, ctx: Any): ...
    def g(ctx, x: int): ...
    def h(x: int, *, ctx=None): ...

    for fn in (f, g, h):
        made = Tool(fn)
        assert made.takes_ctx
        assert list(made.spec.parameters["properties"]) == ["x"]
    assert not Tool(weather).takes_ctx


def test_keyword_arguments_allow_further_properties():
    def f(x: int, **more: Any): ...

    schema = Tool(f).spec.parameters
    assert list(schema["properties"]) == ["x"]
    assert schema["additionalProperties"] is True


def test_a_parameter_or_a_default_may_be_called_title():
    def f(title: str, meta: dict = {"title": "x", "n": [1]}): ...

    shown = props(f)
    assert shown["title"] == {"type": "string"}
    assert shown["meta"]["default"] == {"title": "x", "n": [1]}


def test_defaults_that_are_not_json_are_left_to_the_function():
    def f(x: Any = object()): ...

    made = Tool(f)
    assert "default" not in made.spec.parameters["properties"]["x"]
    assert both(checked(made, {})) == ({}, {})


def test_a_tool_is_made_by_decorator_with_or_without_options():
    @tool
    def one(x: int):
        """One."""
        return x + 1

    @tool(name="two-b", description="Other.", timeout=3)
    def two(): ...

    assert one(1) == 2
    assert one.__doc__ == "One."
    assert repr(one) == "<tool one>"
    assert (two.name, two.spec.description, two.timeout) == ("two-b", "Other.", 3)


@pytest.mark.parametrize("name", ["", "has space", "ümlaut", "a" * 65, "1st", "a/b", "a\n"])
def test_an_invalid_name_is_rejected(name):
    with pytest.raises(RegistrationError, match="tool name"):
        Tool(lambda: None, name=name)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "5"])
def test_an_invalid_timeout_is_rejected(timeout):
    with pytest.raises(RegistrationError, match="timeout must be a positive number"):
        Tool(weather, timeout=timeout)


def test_positional_only_parameters_are_rejected():
    def f(*args): ...
    def g(x, /): ...

    for fn in (f, g):
        with pytest.raises(RegistrationError, match="cannot be given by name"):
            Tool(fn)


async def yields_async():
    """Yield."""
    yield 1


def yields():
    """Yield."""
    yield 1


class Yields:
    """Yield."""

    __name__ = "yields"

    async def __call__(self):
        yield 1


class Bundle:
    def tools(self):
        return [yields_async]


@each_case("fn", [yields_async, yields, Yields(), functools.partial(yields_async), Yields().__call__])
def test_a_generator_is_rejected_and_the_error_says_what_to_write(fn):
    for door in (
        lambda: Tool(fn, name="yields"),
        lambda: tool(name="yields")(fn),
        lambda: Plugin("p", tools=[Tool(fn, name="yields")]),
    ):
        with pytest.raises(RegistrationError, match=r"^tool 'yields' is a generator: .*return a list.*ctx\.progress"):
            door()


@each_case("tools", [[yields_async], [yields], [Bundle()], [Yields()]])
def test_an_agent_refuses_a_plain_generator_function(tools):
    with pytest.raises(RegistrationError, match="is a generator"):
        scripted_agent([reply("x")], tools=tools)
    with pytest.raises(RegistrationError, match="is a generator"):
        scripted_agent([reply("x")]).plug(Plugin("p", tools=tools))


def rows():
    """Return rows."""
    return (f"row {n} in {threading.current_thread().name}" for n in (1, 2))  # a worker thread, not the event loop


async def rows_async():
    """Return rows."""
    return map(str, (1, 2))


def broken_rows():
    """Return rows."""
    return (1 // n for n in (1, 0))


def hidden():
    """Return an async generator that the signature does not show."""
    return yields_async()


def in_a_file(folder):
    return {"hooks": [TapeHook(folder)]}


def in_a_journal(folder):
    return {"durable": RunStore(":memory:")}


@pytest.mark.parametrize("recorded", [lambda folder: {}, in_a_file, in_a_journal])
def test_a_returned_iterator_becomes_a_list_whatever_records_the_run(recorded, tmp_path):
    agent = scripted_agent([[call("rows"), call("rows_async")], reply("done")], tools=[rows, rows_async])
    result = agent.run("x", **recorded(tmp_path))
    first, second = [message.content for message in result.messages if message.role == "tool"]
    assert first == '["row 1 in hookline-worker","row 2 in hookline-worker"]'
    assert second == '["1","2"]'


def test_an_iterator_that_fails_is_an_error_of_its_tool():
    agent = scripted_agent([[call("broken_rows"), call("hidden")], reply("done")], tools=[broken_rows, hidden])
    result = agent.run("x")
    failed, refused = [message.content for message in result.messages if message.role == "tool"]
    assert result.steps[0].outcomes == ("error", "error")
    assert failed.startswith("ZeroDivisionError")
    assert "returned an async generator: return a list" in refused


def test_hints_that_do_not_exist_are_explained():
    def f(x: "Nowhere"): ...  # noqa: F821

    with pytest.raises(RegistrationError, match="tool 'f': name 'Nowhere' is not defined; its type hints must exist"):
        _ = Tool(f).spec


class Odd:
    """A type without a JSON schema."""


@pytest.mark.parametrize(
    ("hint", "shown"),
    [
        (Odd, "Odd"),
        (list[Odd], "list"),
        (dict[str, Odd | None], "dict"),
        (Callable[[int], int], "Callable"),
    ],
)
def test_a_parameter_whose_type_has_no_schema_is_named(hint, shown):
    def f(fine: int, odd, also_fine: str = ""): ...

    f.__annotations__["odd"] = hint
    with pytest.raises(RegistrationError, match=f"^tool 'fetch': parameter 'odd' has the type .*{shown}.*JSON schema"):
        _ = Tool(f, name="fetch").spec


def test_the_error_for_an_unsupported_parameter_says_what_to_use_instead():
    def f(where: Odd): ...

    with pytest.raises(RegistrationError) as refused:
        _ = Tool(f).spec
    assert str(refused.value).endswith("use JSON types, a dataclass, a TypedDict or a pydantic model")
    assert "arbitrary_types_allowed" not in str(refused.value)


class Doubler:
    """Doubles."""

    def __call__(self, n: int) -> int:
        return n * 2

    async def later(self, n: int) -> int:
        return n * 2


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@pytest.mark.parametrize(
    "fn",
    [Doubler(), Doubler().__call__, Doubler().later, functools.partial(add, b=2), lambda n: int(n) * 2],
    ids=["object", "method", "async method", "partial", "lambda"],
)
async def test_every_kind_of_callable_can_be_a_tool(fn):
    made = Tool(fn, name="double")
    (first, *_) = made.spec.parameters["properties"]
    assert await made.call(checked(made, {first: 2}).values, None) == 4


# Validation


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ctiy": "Rome"}, "Invalid arguments for weather: city: field required; you sent: ctiy"),
        ({}, "Invalid arguments for weather: city: field required; you sent: no arguments"),
        (
            {"city": 3},
            "Invalid arguments for weather: city: input should be a valid string, not 3",
        ),
        (
            {"city": "Rome", "town": 1},
            "Invalid arguments for weather: unknown: town; expected: city, days, unit",
        ),
        (
            {"city": "Rome", "unit": "k"},
            "Invalid arguments for weather: unit: input should be 'c' or 'f', not 'k'",
        ),
        (
            {"days": "soon"},
            "Invalid arguments for weather: city: field required; days: input should be a valid integer, "
            "unable to parse string as an integer, not 'soon'; you sent: days",
        ),
    ],
)
def test_invalid_arguments_are_explained(arguments, message):
    assert problem(Tool(weather), freeze(arguments)) == message


def test_errors_inside_nested_values_say_where():
    def visit(places: list[Place]): ...

    message = problem(Tool(visit), {"places": [{"city": "Rome"}, {"zip": "x"}]})
    assert "places.1.city: field required" in message
    assert "places.1.zip: input should be a valid integer" in message


def test_a_long_wrong_value_is_cut():
    assert len(problem(Tool(weather), {"city": ["x"] * 1000})) < 300


def test_a_tool_without_parameters_says_so():
    message = problem(Tool(lambda: None, name="ping"), {"x": 1})
    assert message == "Invalid arguments for ping: unknown: x; expected: no arguments"


@pytest.mark.parametrize(
    ("sent", "got"),
    [
        ({"city": "Rome", "days": "3"}, {"city": "Rome", "days": 3, "unit": "c"}),
        ({"city": "Rome", "days": 3.0}, {"city": "Rome", "days": 3, "unit": "c"}),
        ({"city": "Rome"}, {"city": "Rome", "days": 1, "unit": "c"}),
    ],
)
def test_arguments_are_coerced_and_defaults_filled_in(sent, got):
    arguments, values = both(checked(Tool(weather), freeze(sent)))
    assert arguments == values == got
    assert type(arguments) is FrozenDict
    assert [type(v) for v in arguments.values()] == [type(v) for v in got.values()]


def everything(place: Place, unit: Unit, day: datetime.date, tags: set[str], n: int = 1, opt: Optional[str] = None):  # noqa: UP045
    return place, unit, day, tags, n, opt


RICH = {"place": {"city": "Rome", "zip": "5"}, "unit": "f", "day": "2024-02-03", "tags": ["a", "a"]}


async def test_guards_see_json_and_the_function_gets_its_types():
    made = Tool(everything)
    arguments, values = both(checked(made, RICH))
    assert arguments == {
        "place": {"city": "Rome", "zip": 5},
        "unit": "f",
        "day": "2024-02-03",
        "tags": ["a"],
        "n": 1,
        "opt": None,
    }
    assert json.loads(json.dumps(arguments)) == arguments
    got = await made.call(values, None)
    assert got == (Place(city="Rome", zip=5), Unit.FAHRENHEIT, datetime.date(2024, 2, 3), {"a"}, 1, None)


def strict_default(items: list[str], unit: str = None): ...  # noqa: RUF013
def strict_scalar(city: str, unit: str = None): ...  # noqa: RUF013
def kwargs_tool(x: int, **more: list[int]): ...


@pytest.mark.parametrize(
    ("fn", "sent"),
    [
        (weather, {"city": "Rome"}),
        (everything, RICH),
        (strict_default, {"items": ["a"]}),
        (strict_scalar, {"city": "Rome"}),
        (kwargs_tool, {"x": 1, "more": [1]}),
        (case_enum, {}),
        (case_list, {}),
    ],
)
def test_validated_arguments_are_valid_and_stay_what_they_are(fn, sent):
    made = Tool(fn)
    once = checked(made, sent)
    assert checked(made, once.arguments) == once


async def test_a_default_that_breaks_its_own_hint_still_works():
    def f(items: list[str], unit: str = None):  # noqa: RUF013
        return items, unit

    made = Tool(f)
    arguments, values = both(checked(made, {"items": ["a"]}))
    assert arguments == {"items": ["a"], "unit": None}
    assert await made.call(values, None) == (["a"], None)


async def test_the_function_gets_values_of_its_own():
    def f(items: list[int], data: dict[str, Any], anything):
        items.append(9)
        data["x"] = [9]
        anything["y"].append(9)
        return items, data, anything

    made = Tool(f)
    sent = freeze({"items": [1], "data": {"x": [1]}, "anything": {"y": [1]}})
    for _ in range(2):
        arguments, values = both(checked(made, sent))
        assert await made.call(values, None) == ([1, 9], {"x": [9]}, {"y": [1, 9]})
        assert arguments == sent == {"items": [1], "data": {"x": [1]}, "anything": {"y": [1]}}


async def test_a_mutable_default_is_not_shared_between_calls():
    def f(items: list[int] = []):
        items.append(1)
        return items

    made = Tool(f)
    for _ in range(2):
        arguments, values = both(checked(made, {}))
        assert arguments == {"items": []}
        assert await made.call(values, None) == [1]


@pytest.mark.parametrize("annotated", [True, False])
async def test_further_keyword_arguments_are_checked_copies_too(annotated):
    def typed(**more: list[int]):
        more["a"].append(9)
        return more

    def untyped(**more):
        more["a"].append(9)
        return more

    made = Tool(typed if annotated else untyped)
    sent = {"a": [1]}
    arguments, values = both(checked(made, sent))
    sent["a"].append(2)
    assert arguments == {"a": [1]}
    assert await made.call(values, None) == {"a": [1, 9]}
    assert arguments == {"a": [1]}


def test_further_keyword_arguments_keep_to_their_hint():
    def f(**more: int): ...

    assert "a: input should be a valid integer" in problem(Tool(f), {"a": "x"})
    assert checked(Tool(f), {"a": "3"}).values == {"a": 3}


@given(st.dictionaries(st.sampled_from(["city", "days", "unit", "x"]), st.none() | st.integers() | st.text(max_size=5)))
def test_validation_never_raises(arguments):
    result = Tool(weather).validate(freeze(arguments))
    if isinstance(result, str):
        assert result.startswith("Invalid arguments for weather: ")
    else:
        assert result.arguments["unit"] in ("c", "f")
        assert isinstance(result.arguments["days"], int)


# Calling


async def test_a_sync_function_runs_in_a_worker_thread_and_an_async_one_in_the_loops():
    def sync():
        return threading.get_ident()

    async def later():
        return threading.get_ident()

    assert await Tool(sync).call({}, None) != threading.get_ident()
    assert await Tool(later).call({}, None) == threading.get_ident()


async def test_a_sync_function_that_returns_an_awaitable_is_awaited():
    async def later(x):
        return x * 2

    assert await Tool(lambda x: later(x + 1), name="wrapped").call({"x": 1}, None) == 4


@pytest.mark.parametrize("is_async", [False, True])
async def test_the_context_is_passed_to_the_function(is_async):
    def f(x: int, ctx: Any):
        return x, ctx

    async def g(x: int, ctx: Any):
        return x, ctx

    marker = object()
    made = Tool(g if is_async else f)
    assert await made.call(checked(made, {"x": 1}).values, marker) == (1, marker)


def test_a_model_cannot_send_the_context():
    def f(x: int, ctx: Any): ...

    assert problem(Tool(f), {"x": 1, "ctx": "mine"}) == "Invalid arguments for f: unknown: ctx; expected: x"


async def test_exceptions_of_the_function_propagate():
    def f():
        raise ValueError("oh no")

    with pytest.raises(ValueError, match="oh no"):
        await Tool(f).call({}, None)


async def test_several_sync_calls_run_at_once():
    barrier = threading.Barrier(4, timeout=60)

    def meet() -> bool:
        return barrier.wait() >= 0

    assert all(await asyncio.gather(*(Tool(meet).call({}, None) for _ in range(4))))


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_tool_past_its_timeout_gives_an_error_result(is_async, scripted_agent):
    release = threading.Event()

    @tool(timeout=0.02)
    def slow():
        release.wait(60)

    @tool(name="slow", timeout=0.02)
    async def slow_async():
        await asyncio.sleep(5)

    agent = scripted_agent([call("slow"), "done"], tools=[slow_async if is_async else slow])
    result = await agent.arun("go")
    release.set()
    (message,) = (m for m in result.messages if m.role == "tool")
    assert message.is_error
    assert "no result after 0.02 s" in message.content
    assert result.reply == "done"


# Results


@dataclasses.dataclass
class Point:
    x: int
    tags: set


class Custom:
    def __str__(self):
        return "custom!"


class Shade(str, enum.Enum):  # noqa: UP042
    RED = "red"


RESULTS = {
    "text": ("text", "text"),
    "none": (None, None),
    "number": (1.5, 1.5),
    "big number": (10**30, 10**30),
    "json": ({"a": [1, None, True]}, {"a": [1, None, True]}),
    "tuple": ((1, "a"), [1, "a"]),
    "model": (Place(city="Rome"), {"city": "Rome", "zip": None}),
    "models in a list": ([Place(city="Rome", zip=1)], [{"city": "Rome", "zip": 1}]),
    "dataclass": (Point(1, {"a"}), {"x": 1, "tags": ["a"]}),
    "set": ({3}, [3]),
    "bytes": (b"abc", "abc"),
    "bytes that are no text": (b"\xff\xfea", "\ufffd\ufffda"),
    "bytearray": (bytearray(b"abc"), "abc"),
    "bytes inside": ({"a": b"abc"}, {"a": "abc"}),
    "enum": (Unit.CELSIUS, "c"),
    "enum that is text": (Shade.RED, "red"),
    "date": (datetime.date(2024, 1, 2), "2024-01-02"),
    "decimal": (decimal.Decimal("1.5"), "1.5"),
    "uuid": (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    "path": (pathlib.PurePosixPath("/a/b"), "/a/b"),
    "object": (Custom(), "custom!"),
    "object inside": ([Custom()], ["custom!"]),
    "exception": (ValueError("no"), "no"),
    "number keys": ({1: "a"}, {"1": "a"}),
    "generator": ((n for n in [1, 2]), [1, 2]),
}


@each_case(("value", "expected"), RESULTS.values())
def test_any_return_value_becomes_json(value, expected):
    result = jsonable(value)
    assert result == expected
    assert type(result) in (str, int, float, bool, type(None), FrozenDict, type(freeze([])))
    record = ToolCallResult("1", "t", result=result)
    assert ToolCallResult.from_json(record.to_json()) == record
    assert isinstance(record.text, str)


def test_circular_results_become_text():
    circle = []
    circle.append(circle)
    assert jsonable(circle) == "[[...]]"


@pytest.mark.parametrize(
    "value", ["bad \udcff name", {"files": ["\udcff"]}, {"\udcff": 1}, "\udcff".encode("utf-8", "surrogateescape")]
)
def test_text_with_lone_surrogates_can_be_recorded_and_read(value):
    record = ToolCallResult("1", "t", result=jsonable(value))
    assert record.text.encode()
    assert ToolCallResult.from_json(record.to_json()).id == "1"


def test_a_result_is_a_copy():
    kept = {"a": [1]}
    result = jsonable(kept)
    kept["a"].append(2)
    assert result == {"a": [1]}


# Paths


def by_type(source: pathlib.Path, many: list[pathlib.Path], maybe: pathlib.Path | None = None): ...
def by_annotated(where: Annotated[pathlib.PurePath, Field(description="x")]): ...
def by_name(path: str, file_path: str, out_dir: str, filename: str, folder: str, paths: list[str]): ...
def anything(**given: Any): ...
def not_paths(profile: str, pathology: str, text: str, count: int, file: int): ...


@each_case(
    ("fn", "arguments", "paths"),
    [
        (by_type, {"source": "a", "many": ["b", "c"], "maybe": None}, ["a", "b", "c"]),
        (by_annotated, {"where": "a"}, ["a"]),
        (
            by_name,
            {"path": "1", "file_path": "2", "out_dir": "3", "filename": "4", "folder": "5", "paths": ["6", "7"]},
            list("1234567"),
        ),
        (not_paths, {"profile": "x", "pathology": "x", "text": "x", "count": 1, "file": 3}, []),
        (by_name, {"path": ""}, []),
        (anything, {"file_name": "1", "dirname": "2", "folderName": "3", "name": "x"}, list("123")),
        (by_name, {"paths": [1, None, "a"]}, ["a"]),
        (weather, {"city": "Rome"}, []),
        (
            anything,
            {"filePath": "1", "sourceFiles": ["2"], "OUT_DIR": "3", "log-file": "4", "fileSize": "x"},
            list("1234"),
        ),
        (
            anything,
            {"src": "/1", "dst": "./2", "source": "~", "root": "..", "target_uri": "FILE:///5", "dest": "a\\6"},
            ["/1", "./2", "~", "..", "FILE:///5", "a\\6"],
        ),
        (anything, {"cwd": "1", "sources": ["a/2", "wikipedia"], "target": {"where": "/3"}}, ["1", "a/2", "/3"]),
        (anything, {"uri": "x://../1", "destination": "$HOME"}, ["x://../1", "$HOME"]),
        (anything, {"source": "wikipedia", "target": "de", "uri": "https://x.org/a", "root": 3, "src": ""}, []),
        (anything, {"url": "file:///1", "q": [" file:../2", "File: a note", "file:"]}, ["file:///1", " file:../2"]),
        (anything, {"path": {"/1": 1, "name": "2"}, "edits": {"file:///3": {"x/y": "z/w"}}}, ["/1", "2", "file:///3"]),
        (anything, {"text": "/etc/passwd", "resource": "a/b"}, ["/etc/passwd"]),
        (anything, {"edits": [{"path": "1", "text": "x"}, {"path": "2"}], "file": {"name": "3"}}, list("123")),
    ],
)
def test_paths_are_found_by_the_parameters_types_and_names(fn, arguments, paths):
    assert Tool(fn).paths(freeze(arguments)) == paths


class Parcel(BaseModel):
    at: pathlib.Path
    note: str = ""
    inner: list["Parcel"] = []
    renamed: pathlib.Path | None = Field(default=None, alias="spot")
    model_config = {"populate_by_name": True}


@dataclasses.dataclass
class Spot:
    at: os.PathLike[str]
    label: str = ""


class Listing(TypedDict):
    first: pathlib.Path
    note: str


class Pair(NamedTuple):
    label: str
    at: pathlib.PurePath


AliasedPath = TypeAliasType("AliasedPath", pathlib.Path)
NewPath = NewType("NewPath", pathlib.Path)
Nested = TypeAliasType("Nested", "list[Nested] | str")


@each_case(
    ("hint", "value", "paths"),
    [
        (os.PathLike, "a", ["a"]),
        (os.PathLike[str], "a", ["a"]),
        (AliasedPath, "a", ["a"]),
        (list[AliasedPath], ["a", "b"], ["a", "b"]),
        (NewPath, "a", ["a"]),
        (str | pathlib.Path, "a", ["a"]),
        (Annotated[pathlib.Path, WithJsonSchema({"type": "string"})], "a", ["a"]),
        (Parcel, {"at": "a", "note": "x", "inner": [{"at": "b", "note": "y"}]}, ["a", "b"]),
        (Parcel, {"at": "a", "spot": "b"}, ["a", "b"]),
        (Parcel | None, {"at": "a"}, ["a"]),
        (list[Spot], [{"at": "a", "label": "x"}], ["a"]),
        (dict[str, Spot], {"k": {"at": "a"}}, ["a"]),
        (Listing, {"first": "a", "note": "x"}, ["a"]),
        (Pair, ["x", "a"], ["a"]),
        (tuple[int, pathlib.Path], [1, "a"], ["a"]),
        (dict[pathlib.Path, str], {"a": "x"}, ["a"]),
        (dict[str, pathlib.Path], {"x": "a"}, ["a"]),
        (Nested, [["x"]], []),
        (list[str], ["x"], []),
    ],
)
def test_paths_are_found_by_type_under_any_name_and_at_any_depth(hint, value, paths):
    def take(x): ...

    take.__annotations__["x"] = hint
    for effects in (None, []):
        made = Tool(take, effects=effects)
        checked = made.validate({"x": value})
        assert not isinstance(checked, str), checked
        assert made.paths(checked.arguments) == paths


P = {"type": "string", "format": "path"}


@each_case(
    ("schema", "value"),
    [
        (P, "a"),
        ({"format": "directory-path"}, "a"),
        ({"anyOf": [{"type": "integer"}, {"oneOf": [{"allOf": [P]}]}]}, "a"),
        ({"if": {"type": "string"}, "then": P}, "a"),
        ({"if": {"type": "string"}, "else": P}, "a"),
        ({"type": "array", "items": P}, ["a"]),
        ({"type": "array", "items": [{"type": "string"}, P]}, ["x", "a"]),
        ({"type": "array", "prefixItems": [{"type": "string"}], "items": P}, ["a", "a"]),
        ({"type": "array", "additionalItems": P}, ["a"]),
        ({"patternProperties": {"^x": P}}, {"x1": "a"}),
        ({"properties": {"y": {"type": "string"}}, "additionalProperties": P}, {"y": "x", "z": "a"}),
        ({"propertyNames": P}, {"a": 1}),
        ({"$ref": "#/$defs/a~1b%20c"}, "a"),
        ({"$ref": "#/$defs/node"}, {"next": {"next": {"at": "a"}}}),
        ({"$ref": "#/$defs/loop"}, "x"),
        ({"$ref": "#/$defs/missing"}, "x"),
        ({"$ref": "elsewhere.json"}, "x"),
        (True, "x"),
    ],
)
def test_paths_are_found_by_the_format_in_any_json_schema(schema, value):
    node = {"properties": {"next": {"$ref": "#/$defs/node"}, "at": P}}
    loop = {"anyOf": [{"$ref": "#/$defs/loop"}, {"$ref": "#"}]}
    whole = {"properties": {"q": schema}, "$defs": {"a/b c": P, "node": node, "loop": loop}}
    expected = [] if value == "x" else ["a"] * json.dumps(value).count('"a"')
    assert paths_in(freeze({"q": value}), schemas=[whole]) == expected


def test_the_time_to_find_paths_does_not_grow_with_the_combinations_of_a_schema():
    branch = {"properties": {"n": {"$ref": "#/$defs/node"}, "at": P}}
    whole = {
        "properties": {"q": {"$ref": "#/$defs/node"}},
        "$defs": {"node": {"anyOf": [branch, {**branch}, {**branch}]}},
    }
    value = {"at": "a"}
    for _ in range(100):  # three branches at each of 100 levels
        value = {"n": value}
    assert paths_in({"q": value}, schemas=[whole]) == ["a"]


def test_the_type_of_further_keyword_arguments_counts():
    def take(**given: pathlib.Path): ...

    assert Tool(take, effects=[]).paths(freeze({"x": "a", "y": "b"})) == ["a", "b"]


LOOKS = [
    "/etc/passwd", "/", "~", "~/x", "~root/x", "../x", "..", "a/../../x", "..\\x", "file:x", "FILE:///x", "C:\\x",
    "c:/x", "\\\\server\\share", "$HOME/x", "${HOME}/x", " /etc/passwd", "'/etc/passwd'", '"~/x"', "%2fetc%2fpasswd",
    "%2e%2e/x", "/home/me/My Documents/x.txt", "//server/x", "/*", "/*/passwd", "/" + "a/../" * 2000 + "etc",
]  # fmt: skip
OTHERS = [
    "hello", "and/or", "text/plain", "https://x.org/a", "1/2", "// a comment", "/* a comment */", "/*! a licence",
    "/** docs */", "...", "~5 minutes", "see ../x for more", "a..b", "$5", "12:30", "no / yes", "profile:x", "",
    "/9j/" + "4AAQSkZJRgABAQ" * 1000,
]  # fmt: skip


@pytest.mark.parametrize("effects", [None, ["read"], ["write"], ["delete", "network"], ["execute"]])
def test_paths_are_found_by_look_under_any_name_at_any_depth(effects):
    made = Tool(anything, effects=effects)
    assert made.paths(freeze({f"x{n}": text for n, text in enumerate(LOOKS + OTHERS)})) == LOOKS
    assert made.paths(freeze({"x": [{"y": LOOKS + OTHERS}]})) == LOOKS


@pytest.mark.parametrize("effects", [[], ["network"]])
def test_a_tool_that_declares_to_touch_no_files_has_paths_by_type_and_name_only(effects):
    made = Tool(anything, effects=effects)
    assert made.paths(freeze({"route": "/users/1", "text": "/help me", "path": "/etc", "x": "file:///x"})) == [
        "/etc",
        "file:///x",
    ]


def test_every_line_of_a_text_must_look_like_a_path():
    made = Tool(anything)
    assert made.paths(freeze({"x": "/etc/passwd\n\n ../x\n"})) == ["/etc/passwd", " ../x"]
    assert made.paths(freeze({"x": "/etc/passwd\nis a file"})) == []


def test_a_parameter_that_holds_text_is_not_searched_for_paths():
    def put(path: str, content: str): ...

    made = tool(effects=["write"], texts=["content"])(put)
    assert made.paths(freeze({"path": "a", "content": "/etc/hosts"})) == ["a"]
    assert made.paths(freeze({"path": "a", "content": "file:///etc/hosts"})) == ["a", "file:///etc/hosts"]
    with pytest.raises(RegistrationError, match="'body', which is not one of its parameters"):
        tool(texts=["body"])(put)
    with pytest.raises(RegistrationError, match="texts must be a list"):
        tool(texts="content")(put)


def test_options_work_with_and_without_the_function_argument():
    def look(at: str) -> str:
        return at

    assert tool(look, name="see", timeout=2).name == tool(name="see")(look).name == "see"


def look(at: str) -> str:
    return at


@pytest.mark.parametrize(
    ("effects", "dangerous", "untrusted"),
    [
        (None, True, True),
        ([], False, False),
        (["read"], False, False),
        (["write"], True, False),
        (["read", "delete"], True, False),
        (["execute"], True, True),
        (["network"], True, True),
    ],
)
def test_dangerous_and_untrusted_follow_from_the_effects(effects, dangerous, untrusted):
    declared = tool(effects=effects)(look)
    assert (declared.dangerous, declared.untrusted) == (dangerous, untrusted)


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("effects", [None, [], ["write", "network"]])
def test_an_explicit_flag_wins_over_the_effects(effects, flag):
    marked = Tool(look, effects=effects, dangerous=flag, untrusted=flag)
    assert (marked.dangerous, marked.untrusted) == (flag, flag)


def test_an_undeclared_tool_may_do_everything_and_a_declared_one_only_what_it_says():
    undeclared, pure, reader = Tool(look), Tool(look, effects=[]), Tool(look, effects=("read", "read"))
    assert (undeclared.effects, pure.effects, reader.effects) == (None, frozenset(), frozenset({"read"}))
    assert all(undeclared.may(effect) for effect in get_args(Effect))
    assert not any(pure.may(effect) for effect in get_args(Effect))
    assert [effect for effect in get_args(Effect) if reader.may(effect)] == ["read"]
    assert reader.may("write", "read")
    assert not reader.may("write", "delete")
    assert "read" not in str(reader.spec)  # the model does not see it


@pytest.mark.parametrize("wrong", [["raed"], ["read", "exec"], [None], [["read"]]])
def test_an_unknown_effect_is_rejected_with_the_effects_that_exist(wrong):
    with pytest.raises(RegistrationError, match="There are read, write, delete, execute, network"):
        tool(effects=wrong)(look)


@pytest.mark.parametrize("wrong", ["read", 5])
def test_effects_are_a_list(wrong):
    with pytest.raises(RegistrationError, match="effects must be a list"):
        Tool(look, effects=wrong)


def test_a_tool_runs_in_no_sandbox_unless_it_says_so():
    assert Tool(look).sandbox == ""


def test_tools_with_equal_parameters_have_schemas_of_their_own():
    def make(default, description):
        def find(name: str, limit: int = default): ...

        find.__doc__ = f"Find.\n\nArgs:\n    name: {description}"
        return tool(find)

    few, many, other = make(1, "a name"), make(2, "a name"), make(1, "a word")
    assert [each.spec.parameters["properties"]["limit"]["default"] for each in (few, many, other)] == [1, 2, 1]
    described = [each.spec.parameters["properties"]["name"]["description"] for each in (few, many, other)]
    assert described == ["a name", "a name", "a word"]
