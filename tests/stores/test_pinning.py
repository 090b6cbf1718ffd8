"""Versions of agents: what makes a difference for a run that another process continues, and what does not."""

import functools
import importlib
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from hookline import Agent, HookResult, ScriptedModel, guard, observer, reply, tool
from hookline import hooks as built_in
from hookline.stores import MemoryStore
from hookline.stores.pinning import digest_of, version_of
from hookline.teams import Team

RULES = """
from hookline import BEFORE_TOOL, HookResult, guard, tool

LIMIT = 3

class Budget:
    points = frozenset({"before_tool"})
    phase = "guard"

    def __init__(self, limit, words=(), token=""):
        self.limit, self.words, self._token = limit, words, token
        self.calls = 0

    def __call__(self, point, ctx, request):
        self.calls += 1
        return HookResult.block("Enough.") if self.calls > self.limit else None

@guard("before_tool", tools="pay")
def careful(ctx, request):
    return HookResult.ask("Pay?")

@tool
def pay(amount: int) -> str:
    "Pay."
    return "paid"
"""


@pytest.fixture
def rules(tmp_path, monkeypatch):
    """Write a module, and import it as a new process would."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(*changes, name="rules_of_a_shop"):
        text = functools.reduce(lambda text, change: _changed(text, *change), changes, RULES)
        (tmp_path / f"{name}.py").write_text(text)
        sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield load
    for name in [name for name in sys.modules if name.startswith("rules_of")]:
        del sys.modules[name]


def _changed(text, old, new):
    assert old in text
    return text.replace(old, new)


def clerk(rules, instructions="Be kind.", *hooks, name="clerk", model="gpt", **options):
    llm = ScriptedModel([reply("ok")], name=model)
    agent = Agent(name, "A clerk.", instructions, llm=llm, tools=[rules.pay], hooks=hooks or [rules.careful], **options)
    version_of(agent)  # as a worker does when it starts: the file may change later
    return agent


def different(one, other):
    one, other = version_of(one), version_of(other)
    assert (one.digest == other.digest) == (one.parts == other.parts)
    return sorted(name for name in {*one.parts, *other.parts} if one.parts.get(name) != other.parts.get(name))


def test_an_agent_that_is_imported_again_is_the_same(rules):
    assert different(clerk(rules()), clerk(rules())) == []


@pytest.mark.parametrize(
    "change",
    [
        ("LIMIT = 3", "LIMIT = 4  # which nothing uses"),
        ('    return "paid"', '\n    # Nothing to do.\n    return ("paid")'),
        ("        self.calls += 1", '        """Count."""\n        self.calls += 1'),
    ],
    ids=["elsewhere", "comment", "docstring"],
)
def test_comments_docstrings_and_other_code_make_no_difference(rules, change):
    agents = []
    for changes in ((), (change,)):
        module = rules(*changes)
        agents.append(clerk(module, "", module.careful, module.Budget(3)))
    assert different(*agents) == []


def test_the_name_of_the_module_makes_no_difference(rules):
    assert different(clerk(rules()), clerk(rules(name="rules_of_another"))) == []


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (('HookResult.ask("Pay?")', 'HookResult.ask("Really?")'), "hook careful"),
        (('tools="pay"', 'tools="pa*"'), "hook careful"),
        (('return "paid"', 'return "was paid"'), "tool pay of clerk"),
        (('"Pay."', '"Pay money."'), "tool pay of clerk"),
        (("amount: int", "amount: float"), "tool pay of clerk"),
        (("@tool\ndef pay", "@tool(repeatable=False)\ndef pay"), "tool pay of clerk"),
    ],
)
def test_changed_code_of_a_hook_or_a_tool_makes_a_difference(rules, change, part):
    assert different(clerk(rules()), clerk(rules(change))) == [part]


WITH_HELPERS = (
    'return HookResult.ask("Pay?")',
    """return HookResult.ask("Pay?") if is_much(request) or Prices().of(request) else None

def is_much(request):
    return any(request.arguments.get(name, 0) > ENOUGH for name in NAMES)

class Prices:
    def of(self, request):
        return rounded(request.arguments.get("amount", 0)) * FEE_TOKEN

def rounded(amount):
    global asked
    asked += 1
    return round(amount, DIGITS) if amount else is_much(amount)

def unused(amount):
    return UNUSED

asked, ENOUGH, NAMES, DIGITS, FEE_TOKEN, UNUSED = 0, 100, ("amount", "sum"), 2, 1, 1
""",
)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (("> ENOUGH", ">= ENOUGH"), ["hook careful"]),
        (("* FEE_TOKEN", "+ FEE_TOKEN"), ["hook careful"]),
        (("asked += 1", "asked += 2"), ["hook careful"]),
        (("= 0, 100,", "= 0, 200,"), ["hook careful"]),
        (('"sum"', '"total"'), ["hook careful"]),
        (("2, 1, 1", "3, 1, 1"), ["hook careful"]),
        (("= 0, 100,", "= 7, 100,"), []),
        (("2, 1, 1", "2, 5, 1"), []),
        (("2, 1, 1", "2, 1, 5"), []),
        (("return UNUSED", "return UNUSED + 1"), []),
        (("    return any(", "    # Each of them.\n    return any("), []),
    ],
    ids=["function", "class", "far", "number", "tuple", "far number", "state", "secret", "unused", "other", "comment"],
)
def test_what_a_hook_uses_in_its_project_makes_a_difference_and_other_code_does_not(rules, change, part):
    assert different(clerk(rules(WITH_HELPERS)), clerk(rules(WITH_HELPERS, change))) == part


def test_a_function_of_another_module_of_the_project_makes_a_difference(rules, tmp_path):
    agents = []
    for limit in (1, 2):
        (tmp_path / "rules_of_limits.py").write_text(f"def is_much(request):\n    return len(request.name) > {limit}\n")
        sys.modules.pop("rules_of_limits", None)
        importlib.invalidate_caches()
        used = ('HookResult.ask("Pay?")', 'HookResult.ask("Pay?") if limits.is_much(request) else None')
        agents.append(clerk(rules(("LIMIT = 3", "import rules_of_limits as limits"), used)))
    assert different(*agents) == ["hook careful"]


def test_the_helpers_of_a_tool_make_no_difference(rules):
    used = ('return "paid"', "return receipt()\n\ndef receipt():\n    return 1")
    assert different(clerk(rules(used)), clerk(rules(used, ("return 1", "return 2")))) == []


def test_the_version_of_an_agent_is_computed_once(rules, monkeypatch):
    agent = clerk(rules(WITH_HELPERS))
    monkeypatch.setattr("hookline.records.rules._reached", None)  # so that a second computation fails
    assert digest_of(agent) == version_of(agent).digest


def test_changed_code_of_a_class_or_of_its_base_makes_a_difference(rules):
    base = ("class Budget:", "class Base:\n    limits = 1\n\nclass Budget(Base):")
    one = clerk(module := rules(base), "", module.Budget(1))
    other = clerk(module := rules(base, ("limits = 1", "limits = 2")), "", module.Budget(1))
    assert different(one, other) == ["hook Budget"]


def test_instructions_model_and_settings_make_a_difference(rules):
    one = clerk(rules())
    assert different(one, clerk(rules(), "Be strict.")) == ["instructions of clerk"]
    assert different(one, clerk(rules(), model="claude")) == ["model of clerk"]
    assert different(one, clerk(rules(), params={"temperature": 0})) == ["model of clerk"]


def test_an_argument_of_a_hook_makes_a_difference_and_what_it_remembers_does_not(rules):
    module = rules()
    one = module.Budget(3, ["a"])
    agent = clerk(module, "", one)
    assert different(agent, clerk(module, "", module.Budget(4, ["a"]))) == ["hook Budget"]
    assert different(agent, clerk(module, "", module.Budget(3, ["b"]))) == ["hook Budget"]
    assert different(agent, clerk(module, "", module.Budget(3, ["a"], token="rotated"))) == []
    one.calls, one.words = 7, ["a", "b"]
    agent.hooks.register(observer("after_tool")(lambda ctx, result: None))
    assert different(agent, clerk(module, "", module.Budget(3, ["a"]))) == []


def test_a_number_that_a_hook_notes_for_itself_makes_no_difference(rules):
    module = rules()
    counted = module.Budget(3)
    counted.calls, counted.started = 5, time.time()
    assert different(clerk(module, "", counted), clerk(module, "", module.Budget(3))) == []


def test_variables_of_an_enclosing_function_are_arguments():
    def limited(limit):
        @guard("before_tool")
        def stop(ctx, request):
            return HookResult.block("Enough.") if limit < 1 else None

        return stop

    def agent(hook):
        return Agent("clerk", llm=ScriptedModel([]), hooks=[hook])

    assert different(agent(limited(1)), agent(limited(1))) == []
    assert different(agent(limited(1)), agent(limited(2))) == ["hook stop"]


def test_the_order_of_guards_makes_a_difference_and_observers_do_not(rules):
    module = rules()

    @observer("before_tool")
    def seen(ctx, request):
        pass

    budget = module.Budget(1)
    one = clerk(module, "", module.careful, budget)
    assert different(one, clerk(module, "", seen, module.careful, budget)) == []
    assert different(one, clerk(module, "", budget, module.careful)) == ["hook Budget", "hook careful"]


def test_two_hooks_of_one_class_are_told_apart(rules):
    module = rules()
    one = clerk(module, "", module.Budget(1), module.Budget(2))
    assert different(one, clerk(module, "", module.Budget(1), module.Budget(3))) == ["hook Budget #2"]


def test_agents_to_which_a_tool_delegates_are_part_of_the_version(rules):
    def boss(instructions):
        team = Team([clerk(rules(), instructions)])
        return Agent("boss", llm=ScriptedModel([]), tools=[team])

    assert different(boss("Be kind."), boss("Be kind.")) == []
    assert different(boss("Be kind."), boss("Be strict.")) == ["instructions of clerk"]


def test_the_members_of_a_served_team_are_part_of_its_version(rules):
    module = rules()
    one, other = Team([clerk(module)]), Team([clerk(module), clerk(module, name="other")])
    assert "instructions of other" in different(one, other)


def test_an_object_that_only_starts_runs_has_a_version():
    class Starter:
        hooks = ()

    assert digest_of(Starter()) == digest_of(Starter())


class Cyclic:
    """A hook that refers to itself, with arguments of every kind."""

    points, phase = frozenset({"before_tool"}), "guard"

    def __init__(self, *values):
        self.values, self.self_, self.lock = values, self, threading.Lock()

    def __call__(self, point, ctx, request):
        return None


class Settled(msgspec.Struct):
    """A hook that is a struct."""

    limit: int

    points: ClassVar = frozenset({"before_tool"})
    phase: ClassVar = "guard"

    def __call__(self, point, ctx, request):
        return None


def judged(limit, ctx, request):
    return None


made_up = {}
exec("def generated(ctx, request):\n    return None", made_up)

ODD = {
    "values": lambda: Cyclic(
        1, "\ud800", 2**80, float("nan"), b"x", re.compile("a"), {"a": {1, 2}}, Path("a"), print, Cyclic
    ),
    "struct": lambda: Settled(3),
    "partial": lambda: guard("before_tool")(functools.partial(judged, 3)),
    "lambda": lambda: guard("before_tool")(lambda ctx, request: None),
    "generated": lambda: guard("before_tool")(made_up["generated"]),
    "decorated": lambda: guard("before_tool")(functools.lru_cache(made_up["generated"])),
    "method": lambda: guard("before_tool")(Owner(3).judge),
}


class Owner:
    def __init__(self, limit):
        self.limit = limit

    def judge(self, ctx, request):
        return None


@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
def test_a_hook_of_any_kind_has_a_version_that_is_the_same_for_the_same_hook(make):
    agents = [Agent("clerk", "", "\ud800", llm=ScriptedModel([]), hooks=[make()]) for _ in range(2)]
    assert different(*agents) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Settled(3), Settled(4)),
        (guard("before_tool")(functools.partial(judged, 3)), guard("before_tool")(functools.partial(judged, 4))),
        (guard("before_tool")(Owner(3).judge), guard("before_tool")(Owner(4).judge)),
        (Cyclic(1), Cyclic(2)),
    ],
    ids=["struct", "partial", "method", "values"],
)
def test_arguments_of_hooks_of_other_kinds_make_a_difference(one, other):
    agents = [Agent("clerk", llm=ScriptedModel([]), hooks=[hook]) for hook in (one, other)]
    assert {part.split()[0] for part in different(*agents)} == {"hook"}


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


CHANGED = [
    (built_in.EgressGuard, {"hosts": ["a.example"]}, {"hosts": ["b.example"]}),
    (built_in.SafetyGuardrailHook, {"blocklist": ["a"]}, {"blocklist": ["b"]}),
    (built_in.TokenBudgetHook, {"max_context_tokens": 100}, {"max_context_tokens": 100, "reserve": 1}),
    (built_in.ModelRetryHook, {}, {"max_delay": 7}),
    (built_in.ToolRetryHook, {}, {"max_retries": 1}),
    (built_in.TerminalGuard, {}, {"protect": ["secrets"]}),
    (built_in.SensitiveDataHook, {}, {"kinds": ["email"]}),
    (built_in.StepsLimitHook, {"max_steps": 3}, {"max_steps": 4}),
    (built_in.TokenUsageLimitHook, {"max_total_tokens": 3}, {"max_total_tokens": 4}),
    (built_in.CostLimitHook, {"max_cost": 3}, {"max_cost": 4}),
    (built_in.RateLimitHook, {"max_calls_per_run": 3}, {"max_calls_per_run": 4}),
    (built_in.InjectionGuard, {}, {"threshold": 0.9}),
    (built_in.PathGuard, {"folder": "/srv"}, {"folder": "/srv", "protect": ["keys"]}),
    (built_in.LoopDetectorHook, {}, {"break_after": 9}),
    (built_in.RoleBasedAccessHook, {"rules": {"a": "x"}}, {"rules": {"a": "y"}}),
    (built_in.ToolOutputTruncatorHook, {}, {"max_chars": 5000}),
]


@pytest.mark.parametrize(("kind", "before", "after"), CHANGED, ids=lambda value: getattr(value, "__name__", ""))
def test_a_changed_argument_of_a_built_in_hook_makes_a_difference(kind, before, after):
    def agent(options):
        return Agent("clerk", llm=ScriptedModel([]), hooks=[kind(**options)])

    assert different(agent(before), agent(before)) == []
    assert [part.split()[0] for part in different(agent(before), agent(after))] == ["hook"]


def built_in_agent(folder):
    """An agent with hooks of every kind, as each process of a fleet makes it."""
    hooks = [kind(**options) for kind, options, _ in CHANGED] + [make() for make in ODD.values()]
    return Agent(
        "clerk",
        llm=ScriptedModel([]),
        tools=[add],
        hooks=[*hooks, built_in.MemoryInjectionHook(MemoryStore(folder / "m.db"))],
    )


def test_processes_agree_on_the_version_of_the_same_agent(tmp_path):
    code = (
        f"from pathlib import Path\nfrom {__name__} import *\nprint(digest_of(built_in_agent(Path({str(tmp_path)!r}))))"
    )
    folder = Path(__file__).parents[2]
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{folder / 'src'}:{folder}"},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert found == {f"{digest_of(built_in_agent(tmp_path))}\n"}
