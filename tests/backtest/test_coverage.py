"""Coverage: which tools, arguments and points of recorded runs are judged."""

import time

import msgspec
import pytest

from hookline import AFTER_LLM, BEFORE_LLM, BEFORE_TOOL, Agent, HookResult, ScriptedModel, call, guard, hook, observer
from hookline.backtest import BacktestError, Coverage, coverage
from hookline.hooks import PathGuard, Strict, TerminalGuard
from hookline.records import RecordHook
from hookline.tools import Tool


def shell(command: str, timeout: int = 5) -> str:
    """Run a command."""
    return "ok"


def write(path: str, options: dict[str, bool]) -> str:
    """Write a file."""
    return "ok"


def calc(a: int) -> int:
    """Compute."""
    return a


TOOLS = [Tool(shell), Tool(write, effects=["write"]), Tool(calc, effects=[])]
TURNS = [
    call("shell", command="ls", timeout=3),
    [call("shell", command="sudo rm x"), call("write", path="a.txt", options={"force": True})],
    call("calc", a=1),
    "done",
]


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Two runs of an agent without guards, and a nested run."""
    folder = tmp_path_factory.mktemp("records")
    inner = Agent("inner", llm=ScriptedModel([call("shell", command="id", timeout=1), "inner"], loop=True), tools=TOOLS)

    async def ask(task: str) -> str:
        """Ask the inner agent."""
        return (await inner.arun(task)).reply

    model = ScriptedModel([*TURNS, call("ask", task="x"), "done"])
    agent = Agent("outer", llm=model, tools=[*TOOLS, Tool(ask)], hooks=[RecordHook(folder)])
    agent.run("Work.")
    agent.run("Ask.")
    return folder


@guard(BEFORE_TOOL, tools="shell")
def no_sudo(ctx, request):
    return HookResult.block("no sudo") if "sudo" in request.arguments["command"] else None


@guard(BEFORE_TOOL)
def logs_everything(ctx, request):
    str(request.arguments)


@guard(BEFORE_TOOL)
def only_write(ctx, request):
    if request.name == "write" and request.arguments["options"]["force"]:
        return HookResult.ask("Really?")
    return None


@guard(BEFORE_TOOL)
async def later(ctx, request):
    return HookResult.block("no") if request.arguments.get("a") == 3 else None


def rows(found):
    return {
        tool.tool: (tool.calls, tool.guards, [each.name for each in tool.unread], tool.idle) for tool in found.tools
    }


def test_each_tool_has_its_calls_its_guards_and_the_arguments_that_no_guard_looked_at(records):
    found = coverage([no_sudo], records)
    assert (found.rules, found.files >= 1, found.runs) == (("no_sudo",), True, 2)
    assert rows(found) == {
        "shell": (3, ("no_sudo",), ["timeout"], ()),
        "ask": (1, (), ["task"], ()),
        "calc": (1, (), ["a"], ()),
        "write": (1, (), ["path", "options"], ()),
    }
    assert found.uncovered_tools == ("ask", "calc", "write")
    (shell_row,) = [tool for tool in found.tools if tool.tool == "shell"]
    assert shell_row.nested == 1
    counts = {each.name: (each.calls, each.read, each.whole) for each in shell_row.arguments}
    assert counts == {"command": (3, 3, 0), "timeout": (3, 0, 0)}


def test_a_guard_without_tools_judges_the_tools_whose_arguments_it_looks_at(records):
    found = rows(coverage([only_write], records))
    assert found["write"] == (1, ("only_write",), ["path"], ())
    assert found["shell"] == (3, (), ["command", "timeout"], ("only_write",))


def test_an_async_guard_is_watched_too(records):
    found = rows(coverage([later, no_sudo], records))
    assert found["calc"] == (1, ("later",), [], ())
    assert found["shell"][1] == ("later", "no_sudo")


def test_an_async_guard_may_wait(records):
    import asyncio

    @guard(BEFORE_TOOL, tools="calc")
    async def waits(ctx, request):
        await asyncio.sleep(0)
        return HookResult.block("no") if request.arguments["a"] else None

    assert rows(coverage([waits], records))["calc"] == (1, ("waits",), [], ())


def test_arguments_that_are_only_read_together_are_told_apart(records):
    found = coverage([no_sudo, logs_everything], records)
    assert found.uncovered_tools == ()
    (shell_row,) = [tool for tool in found.tools if tool.tool == "shell"]
    assert [each.name for each in shell_row.read_as_a_whole] == ["timeout"]
    assert not shell_row.unread


def test_a_guard_that_names_a_tool_judges_it_even_if_it_reads_no_argument(records):
    passes = guard(BEFORE_TOOL, tools="calc", name="passes")(lambda ctx, request: None)
    found = rows(coverage([passes], records))
    assert found["calc"] == (1, ("passes",), ["a"], ())
    assert found["shell"][1] == ()


def test_every_guard_is_called_even_if_another_one_blocks(records):
    first = guard(BEFORE_TOOL, tools="shell", name="first", priority=9)(lambda ctx, request: HookResult.block("no"))
    assert rows(coverage([first, no_sudo], records))["shell"][1:3] == (("first", "no_sudo"), ["timeout"])


def test_rewriters_and_observers_are_not_guards(records):
    reads = hook(BEFORE_TOOL, name="reads")(lambda ctx, request: None if request.arguments else None)
    looks = observer(BEFORE_TOOL, name="looks")(lambda ctx, request: None)
    assert coverage([reads, looks, Strict()], records).uncovered_tools == ("shell", "ask", "calc", "write")


def test_built_in_guards_are_watched_like_others(records, tmp_path):
    found = coverage([PathGuard(tmp_path, write=True)], records)
    assert not [tool for tool in found.tools if tool.tool == "write"][0].unread


def test_a_guard_that_reads_the_transcript_may_have_read_all_arguments_there(records):
    @guard(BEFORE_TOOL)
    def reads(ctx, request):
        call = ctx.state.messages[-1].tool_calls[0]
        return HookResult.block("no") if call.arguments.get("timeout") == 99 else None

    role = guard(BEFORE_TOOL, tools="shell", name="role")(lambda ctx, request: ctx.state.metadata.get("x"))
    assert rows(coverage([reads], records))["shell"] == (3, ("reads",), [], ())
    assert rows(coverage([role], records))["shell"] == (3, ("role",), ["command", "timeout"], ())


def test_a_built_in_guard_that_uses_threads_reads_only_its_own_argument(records, tmp_path):
    found = rows(coverage([TerminalGuard(tmp_path)], records))
    assert found["shell"] == (3, ("TerminalGuard",), ["timeout"], ())


def test_the_calls_are_judged_with_the_arguments_that_the_guards_saw_then(tmp_path):
    def validated(count: int) -> int:
        """Count."""
        return count

    seen = []
    adds = hook(BEFORE_TOOL)(lambda ctx, request: request.replace(arguments={**request.arguments, "count": "4"}))
    blocks = guard(BEFORE_TOOL)(lambda ctx, request: HookResult.block("no"))
    turns = [call("validated", count="3"), "done"]
    Agent("a", llm=ScriptedModel(turns), tools=[Tool(validated)], hooks=[adds, blocks, RecordHook(tmp_path)]).run("x")
    looks = guard(BEFORE_TOOL, name="looks")(lambda ctx, request: seen.append(request.arguments["count"]))
    coverage([looks], tmp_path)
    assert seen == [4]


def test_points_without_a_decider_and_the_purposes_of_model_calls_are_listed(records):
    judges = guard(AFTER_LLM, name="judges")(lambda ctx, reply: None)
    watches = observer(BEFORE_LLM)(lambda ctx, request: None)
    found = coverage([judges, watches, no_sudo], records)
    points = {point.point: (point.moments, point.deciders) for point in found.points}
    assert points["after_llm"] == (8, ("judges",))
    assert points["before_llm"] == (8, ())
    assert points["before_tool"] == (6, ("no_sudo",))
    assert {"before_llm", "after_tool", "on_run_end"} <= set(found.undecided_points)
    assert [(each.purpose, each.calls) for each in found.purposes] == [("step", 8)]


def test_a_guard_that_fails_is_counted_and_the_others_go_on(records):
    @guard(BEFORE_TOOL, tools="shell")
    def broken(ctx, request):
        return request.arguments["missing"]

    @guard(BEFORE_TOOL, tools="shell", name="writes")
    def writes(ctx, request):
        open("/nowhere/canary", "w").write("x")  # noqa: PLW1514, SIM115

    found = coverage([broken, writes, no_sudo], records)
    failures = {(each.hook, each.problem): each.count for each in found.failures}
    assert failures == {("broken", "raised"): 3, ("writes", "raised"): 3}
    assert rows(found)["shell"][1] == ("broken", "writes", "no_sudo")
    assert found.fail_if("failed > 0") == "failed > 0: failed is 6"


def test_a_guard_that_hangs_is_given_up(tmp_path):
    model = ScriptedModel([*(call("calc", a=n) for n in range(6)), "done"])
    Agent("a", llm=model, tools=TOOLS, hooks=[RecordHook(tmp_path)]).run("x")
    calls = []

    @guard(BEFORE_TOOL)
    def hangs(ctx, request):
        calls.append(request.arguments["a"])
        while True:
            time.sleep(0.01)

    found = coverage([hangs], tmp_path, time_limit=0.1)
    assert calls == [0, 1, 2]
    assert [(each.problem, each.count) for each in found.failures] == [("timed_out", 3)]
    assert found.tools[0].calls == 6


def test_the_run_can_be_filtered(records):
    assert coverage([no_sudo], records, where="tool=calc").tools[0].tool == "calc"
    with pytest.raises(BacktestError, match="there is no record"):
        coverage([no_sudo], records, since=time.time() + 60)


def test_names_that_models_make_up_do_not_fill_the_report(tmp_path, monkeypatch):
    monkeypatch.setattr("hookline.backtest._coverage.MAX_NAMES", 2)
    anything = [Tool(lambda **given: "ok", name=f"t{n}", description="x") for n in range(4)]
    model = ScriptedModel([*(call(f"t{n}", **{f"a{n}": 1}) for n in range(4)), "done"])
    Agent("a", llm=model, tools=anything, hooks=[RecordHook(tmp_path)]).run("x")
    found = coverage([no_sudo], tmp_path)
    assert {tool.tool: tool.calls for tool in found.tools} == {"t0": 1, "t1": 1, "(others)": 2}


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("uncovered_tools > 0", "uncovered_tools > 0: uncovered_tools is 3"),
        (
            "unread_arguments >= 5 and calls > 3",
            "unread_arguments >= 5 and calls > 3: unread_arguments is 5, calls is 6",
        ),
        ("undecided_points == 0", None),
        ("skipped > 0 or runs < 2", None),
    ],
)
def test_a_check_says_why_it_failed(records, expression, reason):
    assert coverage([no_sudo], records).fail_if(expression) == reason


def test_an_unknown_name_in_a_check_is_refused_with_a_similar_one():
    with pytest.raises(
        BacktestError, match=r"there is no 'uncovered_tool'. Did you mean 'uncovered_tools'\?.*Write for"
    ):
        Coverage().fail_if("uncovered_tool > 0")


def test_rules_and_records_must_exist(records, tmp_path):
    with pytest.raises(BacktestError, match="there are no rules"):
        coverage([], records)
    with pytest.raises(Exception, match="nowhere"):
        coverage([no_sudo], tmp_path / "nowhere")


def test_a_result_is_json(records):
    found = coverage([no_sudo], records)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Coverage) == found
