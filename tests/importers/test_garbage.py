"""Whatever is in a log, an import ends, counts what it cannot read, and writes a record that can be read."""

import copy
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookline.importers import import_logs
from hookline.records import Account
from hookline.records.reading import read_runs
from tests.properties import examples

from .test_openai import TALK, TOOLS, request_log
from .test_otel import ANSWERED, ASKED, CALLED, DONE, export, span
from .transcripts import REJECTED, Transcript, said, thought, tool_use


def claude_code():
    made = Transcript()
    made.prompt("Work")
    calls = (tool_use("c1", "Bash", command="ls"), tool_use("c2", "Task", prompt="Count"))
    made.reply("m1", thought(), *calls, stop="tool_use")
    made.prompt("Count", isSidechain=True, parent=None)
    made.reply("s1", said("3"), isSidechain=True)
    made.result("c1", [said("a.txt")], toolUseResult={"stdout": "a.txt"})
    made.result("c2", REJECTED, is_error=True, toolUseResult={"agentId": "a1"}, toolDenialKind="user-rejected")
    made.prompt("This session is being continued", isCompactSummary=True, logicalParentUuid="x")
    made.reply("m2", said("Done."))
    return made.lines


def otel():
    first = {"gen_ai__input__messages": ASKED, "gen_ai__output__messages": json.dumps([CALLED])}
    second = {"gen_ai__input__messages": [*ASKED, CALLED, ANSWERED], "gen_ai__output__messages": [DONE]}
    verdict = ("hookline.verdict", {"hookline.point": "before_tool", "hookline.verb": "block", "hookline.hook": "g"})
    decided = ("hookline.approval_decided", {"hookline.decision": "denied", "hookline.by": "ann"})
    tool = {
        "gen_ai__tool__name": "ls",
        "gen_ai__tool__call__id": "c1",
        "gen_ai__tool__call__arguments": '{"path": "."}',
    }
    return [
        export(
            span("a", 0, 9, "invoke_agent", gen_ai__agent__name="bob", hookline__cost=0.5),
            span("s1", 1, 2, "chat", "a", **first),
            span("t1", 2, 3, "execute_tool", "a", events=[verdict, decided], **tool),
            span("b", 2.1, 2.9, "invoke_agent", "t1"),
            span("s2", 4, 5, "chat", "a", **second),
        )
    ]


LOGS = {
    "claude-code": claude_code(),
    "openai": [{"messages": TALK, "tools": TOOLS}, *request_log(*TALK)],
    "otel": otel(),
}

anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def places(value, path=()):
    """All places in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


def put(value, path, item):
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = item


@pytest.mark.parametrize("source", LOGS)
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_may_be_anything(source, data, tmp_path_factory):
    lines = copy.deepcopy(LOGS[source])
    for _ in range(data.draw(st.integers(1, 4))):
        path = data.draw(st.sampled_from(list(places(lines))))
        try:
            put(lines, path, data.draw(anything))
        except (TypeError, KeyError, IndexError):
            continue  # an earlier change removed the place
    folder = tmp_path_factory.mktemp("garbage")
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / "log.jsonl").write_text(text, "utf-8", "surrogatepass")
    report = import_logs(source, [folder / "log.jsonl"], folder / "out.moments")
    account = Account()
    runs = list(read_runs([report.path], account=account)) if report.path else []
    assert sum(1 for run in runs for _ in run.tree()) == report.runs
    for run in runs:
        for each in run.tree():
            assert [moment.payload for moment in each.moments]
    assert not account.skipped
