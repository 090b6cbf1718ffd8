"""Files of rules: every mistake is found when they are loaded, with its line and column."""

import json
import tomllib
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.hooks import RulesError, load_rules
from hookline.hooks._rules import file
from hookline.hooks._rules.conditions import FUNCTIONS, VARIABLES, Condition, ConditionError
from hookline.hooks._rules.positions import Positions
from tests.cases import each_case
from tests.properties import examples

pytest.importorskip("cel_expr_python", reason="rules need: pip install 'hookline[rules]'")

GOOD = """
[tools.refund.arguments]
order = "string"
amount = "number"
tags = "array"

[[rules]]
name = "a"
tools = "refund"
when = "call.arguments.amount > 1"
then = "block"
message = "No."
"""


def load(tmp_path, text):
    path = tmp_path / "rules.toml"
    path.write_bytes(text.encode())
    return load_rules(path)


def error_of(tmp_path, text):
    with pytest.raises(RulesError) as caught:
        load(tmp_path, text)
    return str(caught.value).replace(str(tmp_path / "rules.toml"), "rules.toml")


def changed(old, new):
    assert old in GOOD
    return GOOD.replace(old, new, 1)


MISTAKES = {
    "no rules": ("store = 'a.db'", "rules.toml has no rules. A rule begins with [[rules]]"),
    "no TOML": ("[[rules]", "rules.toml is not valid TOML"),
    "a misspelt key": (changed("message", "mesage"), "rules.toml:12: a rule has no 'mesage'. Did you mean 'message'?"),
    "an unknown key of the file": (f"limit = 1\n{GOOD}", "rules.toml:1: a file of rules has no 'limit'."),
    "a misspelt key of an example": (
        GOOD + "[[rules.examples]]\nthen = 'pass'\nargs = 1",
        "rules.toml:15: an example has no 'args'. Did you mean",
    ),
    "no condition": (changed('when = "call.arguments.amount > 1"\n', ""), "rules.toml:7: it needs `when`"),
    "no message": (changed('message = "No."', ""), "rules.toml:7: rule 'a' needs a message"),
    "an unknown verb": (changed('"block"', '"blok"'), "rules.toml:11: 'blok' is not known. Did you mean 'block'?"),
    "a verb of another point": (
        changed('"block"', '"retry"'),
        "rules.toml:11: a rule at before_tool cannot retry: it may block, ask, end, stop. 'retry' is for after_llm",
    ),
    "an unknown point": (
        changed("tools = ", "point = 'before_tol'\ntools = "),
        "rules.toml:9: 'before_tol' is not known",
    ),
    "a point without tools": (
        changed('tools = "refund"', "tools = 'refund'\npoint = 'before_llm'").replace('"block"', '"stop"'),
        "rules.toml:9: before_llm is about no tool",
    ),
    "two rules of a name": (GOOD + GOOD.partition("\n\n")[2], "rules.toml:14: there are two rules with the name 'a'"),
    "a name with a space": (changed('"a"', '"a b"'), "rules.toml:8: the name 'a b' must be letters"),
    "a wrong type": (changed('"No."', "5"), "rules.toml:12: message: Expected `str`, got `int`"),
    "an unknown type of an argument": (changed('"string"', '"text"'), "rules.toml:3: 'text' is not known."),
    "a label without a name": (changed('"block"', '"label"'), "cannot label"),
    "an example that says something else": (
        GOOD + "[[rules.examples]]\nthen = 'ask'",
        "rules.toml:14: an example says then = 'block' or 'pass', not 'ask'",
    ),
    "a store elsewhere": (f"store = '../calls.db'\n{GOOD}", "rules.toml:1: store is a file beside the rules"),
    "a store in a database": (f"store = 'postgresql://a/b'\n{GOOD}", "rules.toml:1: store is a file beside the rules"),
    "a priority that is no number": (changed("tools = ", "priority = nan\ntools = "), "priority is a number from"),
    "no tool": (changed('"refund"', "[]"), "rules.toml:9: tools names at least one"),
    "an argument that the tool lacks": (
        changed("amount > 1", "amuont > 1"),
        "rules.toml:10:24: rule 'a': the tool has no argument 'amuont'. Did you mean 'amount'? It takes order, amount",
    ),
    "such an argument in brackets": (
        changed(".amount >", "['amuont'] >"),
        "rules.toml:10:24: rule 'a': the tool has no",
    ),
    "such an argument in has()": (changed("call.arguments.amount > 1", "has(call.arguments.x)"), "no argument 'x'"),
    "an argument of another type": (
        changed("amount > 1", "order > 1"),
        "rules.toml:10:30: rule 'a': found no matching",
    ),
    "an unknown variable": (
        changed("call.arguments.amount", "cal.arguments.amount"),
        "rules.toml:10:9: rule 'a': 'cal.arguments.amount' is",
    ),
    "a misspelt field": (changed("call.arguments.amount > 1", "call.tol == 'x'"), "rules.toml:10:"),
    "an unknown function": (
        changed("call.arguments.amount > 1", "caled('x')"),
        "'caled' is not known here. Did you mean",
    ),
    "a misspelt field of a call": (
        changed("call.arguments.amount > 1", "history.exists(c, c.tol == 'x')"),
        "rules.toml:10:29: rule 'a': a call of the history has no 'tol'. Did you mean 'tool'?",
    ),
    "a text for a condition": (
        changed("call.arguments.amount > 1", "call.tool"),
        "must be true or false, and this is a text",
    ),
    "a wrong pattern": (
        changed("call.arguments.amount > 1", "call.tool.matches('(')"),
        "rules.toml:10:27: rule 'a': invalid",
    ),
    "a wrong time": (changed("call.arguments.amount > 1", "now < timestamp('never')"), "rule 'a': "),
    "a window that is not written out": (
        changed("call.arguments.amount > 1", "count(call.tool, duration('1h')) > 1"),
        "rules.toml:10:9: rule 'a': write the tools and the time as texts",
    ),
    "a window that is too long": (
        changed("call.arguments.amount > 1", "count('a', duration('2000h')) > 1"),
        "calls are kept for 744h",
    ),
    "a variable of a macro that hides another": (
        changed("call.arguments.amount > 1", "history.exists(call, call.tool == 'x')"),
        "rules.toml:10:24: rule 'a': 'call' is a variable of rules: choose another name",
    ),
    "a name that begins with a dot": (changed("call.arguments", ".call.arguments"), "a name does not begin with a '.'"),
    "a condition that is too long": (
        changed("> 1", "> 1 || " + "true || " * 2000 + "true"),
        "at most 10,000 characters",
    ),
    "a condition that is too deep": (changed("> 1", "> 1 || " + "(" * 500 + "true" + ")" * 500), "recursion limit"),
}


@each_case(("text", "expected"), MISTAKES.values())
def test_a_mistake_is_an_error_that_says_where(tmp_path, text, expected):
    assert expected in error_of(tmp_path, text)


def test_a_label_rule_reads_its_own_call_only(tmp_path):
    label = "[[rules]]\nname='l'\npoint='after_tool'\nthen='label'\nlabel='x'\nwhen=\"called('a')\"\n"
    assert "a label depends on its own call only" in error_of(tmp_path, label)
    shadow = label.replace("called('a')", "true") + "shadow = true\n"
    assert "a label only marks a call for other rules" in error_of(tmp_path, shadow)
    late = label.replace("then='label'\nlabel='x'", "then='withhold'\nmessage='x'")
    late = late.replace("called('a')", "count('a', duration('1h')) > 1")
    assert "calls of a caller are counted at before_tool only" in error_of(tmp_path, late)


WRITTEN = {
    "several lines": ('when = """\n  call.tool == \'é\' ||\n  yy"""', 5, 3),
    "an escape before it": ('when = "call.tool == \\"\\u00e9\\" || yy"', 3, 36),
    "a literal text": ("when = 'call.tool == \"é\" || yy'", 3, 29),
    "a quoted key": ("\"when\" = 'yy'", 3, 11),
    "a comment with brackets": ("# [[rules]] when = 'x'\nwhen = 'yy'", 4, 9),
    "a text with brackets before it": ('reason = """\n[[rules]]\nwhen = 1"""\nwhen = "yy"', 6, 9),
    "an escaped end of a line": ('when = """call.tool == "x" \\\n   || yy"""', 4, 7),
}


@each_case(("text", "line", "column", "end"), [(*each, end) for each in WRITTEN.values() for end in ("\n", "\r\n")])
def test_the_place_of_a_mistake_is_that_in_the_file(tmp_path, text, line, column, end):
    whole = f"[[rules]]\nname = 'a'\n{text}\nthen = 'block'\nmessage = 'x'\n".replace("\n", end)
    assert f"rules.toml:{line}:{column}: rule 'a': 'yy' is not known" in error_of(tmp_path, whole)


def test_the_place_in_inline_tables(tmp_path):
    first, second = "{name='a', when='true', then='stop'}", "{name='b', then='stop', message='x', when='yy'}"
    text = f"rules = [{first},\n {second}]"
    assert "rules.toml:2:45: rule 'b'" in error_of(tmp_path, text)


def test_a_text_in_a_condition_is_no_name(tmp_path):
    when = r"""call.arguments.order != 'history.exists(c, c.tol)' // call.arguments.typo
        && call.arguments.order != r'\d' && call.arguments.order != "call.arguments.typo" """
    rules = load(tmp_path, changed('when = "call.arguments.amount > 1"', f"when = '''{when}'''"))
    assert rules.rules[0].condition.arguments == {"order"}
    assert not rules.rules[0].condition.reads_calls


SHAPES = {
    "history.exists(c, c.tool == 'x' && c.arguments.id == '1')": ({"tool", "arguments"}, {"id"}),
    "history.filter(c, c.outcome == 'ok').exists(d, 'x' in d.labels)": ({"outcome", "labels"}, set()),
    "history.size() > 3": (set(), set()),
    "size(history) > 0 && history[size(history) - 1].tool == 'x'": ({"tool"}, set()),
    "history.exists(c, c.arguments['a b'] == 1)": ({"arguments"}, {"a b"}),
    "history.exists(c, history.exists(d, d.arguments.x == c.arguments.y))": ({"arguments"}, {"x", "y"}),
}


@each_case(("when", "fields", "arguments"), [(when, *found) for when, found in SHAPES.items()])
def test_only_what_a_condition_reads_of_calls_is_converted(when, fields, arguments):
    shape = Condition(when, "before_tool").shape
    assert (shape.fields, shape.arguments) == (fields, arguments)


@each_case("when", ["history.exists(c, c == {})", "history == []", "history.exists(c, c.arguments == {})"])
def test_a_condition_that_reads_calls_whole_gets_them_whole(when):
    assert Condition(when, "before_tool").shape.arguments is None


@given(st.text(max_size=60))
@settings(max_examples=examples(60), deadline=None)
def test_no_text_for_a_condition_breaks_the_program(text):
    for when in (
        text,
        f"call.arguments.{text}",
        f"history.exists(c, c.{text})",
        f"count({text})",
        f"'{text}' == caller",
    ):
        with suppress(ConditionError):
            Condition(when, "before_tool").check_arguments({"a": "string", "b-c": "number"})


values = st.recursive(
    st.text(max_size=5) | st.integers() | st.booleans(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.from_regex(r"[a-z]{1,3}", fullmatch=True), inner, max_size=3)
    ),
    max_leaves=8,
)


def written(value):
    """TOML has no null, and its inline tables look like Python's with = instead of :."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    return json.dumps(value)


@given(st.lists(st.dictionaries(st.sampled_from(["name", "when", "x"]), values, max_size=3), max_size=4))
@settings(max_examples=examples(60), deadline=None)
def test_every_key_of_a_valid_file_has_a_place(rules):
    lines = []
    for rule in rules:
        lines += ["[[rules]]", *(f"{key} = {written(value)}" for key, value in rule.items())]
    text = "\n".join(lines).replace("\x7f", " ")
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    positions = Positions(text)
    rows = text.split("\n")
    for index, rule in enumerate(rules):
        for key in rule:
            place = positions.of("rules", index, key)
            assert rows[place.line - 1].startswith(f"{key} =")


def test_settings_are_not_rules_and_rules_are_not_settings(tmp_path):
    (tmp_path / "a.toml").write_text(GOOD)
    (tmp_path / "b.toml").write_text("model = 'x'\n[server]\nrules = ['a.toml']\n")
    (tmp_path / "c.toml").write_bytes(b"\xff")
    assert [file.is_rules(tmp_path / name) for name in ("a.toml", "b.toml", "c.toml", "d.toml")] == [True] + [False] * 3


def test_the_schema_accepts_what_the_program_accepts(tmp_path):
    from jsonschema import Draft202012Validator

    validator = Draft202012Validator(file.schema())
    assert validator.is_valid(tomllib.loads(GOOD))
    assert not validator.is_valid(tomllib.loads(changed('"block"', '"blok"')))
    assert not validator.is_valid(tomllib.loads(changed("message", "mesage")))


def test_examples_are_tested(tmp_path):
    more = """
[[rules.examples]]
arguments = { amount = 2 }
then = "block"

[[rules.examples]]
arguments = { amount = 1 }
then = "block"

[[rules.examples]]
tool = "other"
then = "pass"

[[rules.examples]]
then = "pass"
"""
    rules = load(tmp_path, GOOD + more)
    found = [(rule.name, number, done) for rule, number, done in rules.failed_examples()]
    assert found == [("a", 2, "pass"), ("a", 4, 'no answer: Key not found in map : "amount"')]
    assert rules.place_of(rules.rules[0], 2).endswith("rules.toml:18")


def test_an_example_describes_the_history_the_caller_and_the_time(tmp_path):
    text = """
[[rules]]
name = "all"
tools = "pay"
when = '''history.exists(c, c.tool == 'show' && c.approved && c.arguments.sum == call.arguments.sum)
    && count('pay', duration('1h')) >= 2 && count('show') == 1 && caller == 'ann' && 'seen' in labels
    && now.getFullYear() == 2030 && metadata.role == 'x' && call.untrusted && 'write' in call.effects'''
then = "ask"
message = "Pay?"

[[rules.examples]]
arguments = { sum = 3 }
history = [{ tool = "show", arguments = { sum = 3 }, approved = true, labels = ["seen"] }]
count = 2
caller = "ann"
now = 2030-01-02T03:04:05
metadata = { role = "x" }
untrusted = true
effects = ["write"]
then = "ask"
"""
    assert not list(load(tmp_path, text).failed_examples())


def test_every_variable_and_function_of_the_reference_exists():
    types = {
        "string": "== ''",
        "int": "== 1",
        "bool": "== true",
        "double": "> 1.0",
        "dyn": "== 1",
        "timestamp": "== now",
    }
    for point, names in VARIABLES.items():
        for name, kind in names.items():
            Condition(f"{name} {types[kind]}" if kind in types else f"{name}.size() > 0", point)
    assert {"called", "count", "host", "within", "glob"} == {name.partition("(")[0] for name in FUNCTIONS}


HOSTS = {
    "https://Example.COM:8443/x": "example.com",
    "http://user@evil.com/@good.com": "evil.com",
    "//good.com": "good.com",
    "good.com": "",
    "http://[": "",
}


@each_case(("url", "host"), HOSTS.items())
def test_the_host_of_an_address(url, host):
    from hookline.hooks._rules.conditions import Situation

    condition = Condition(f"host(task) == '{host}'", "before_tool")
    assert condition.holds(Situation({"task": url}))


PATHS = {
    ("data/x", "data"): True,
    ("data/../secrets", "data"): False,
    ("./data//x", "data/"): True,
    ("data-2/x", "data"): False,
    ("data", "data"): True,
    ("..\\data\\x", "data"): False,
    ("/data/x", "/"): True,
}


@each_case(("path", "folder", "found"), [(*each, found) for each, found in PATHS.items()])
def test_whether_a_path_is_in_a_folder(path, folder, found):
    from hookline.hooks._rules.conditions import Situation

    condition = Condition("within(task, caller)", "before_tool")
    assert condition.holds(Situation({"task": path, "caller": folder})) is found
