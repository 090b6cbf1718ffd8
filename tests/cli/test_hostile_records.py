"""Records from elsewhere: whatever a file contains, every command says what it skipped and shows the rest."""

import json

import pytest

from hookline.cli.app import run_app
from hookline.cli.errors import report_error

EVIL = "\x1b]0;X\x07\x1b[31m\u202eevil\u2066\x9b31m\r\x08\u2028"
"""Sequences that set the title, change colours and reverse the text."""
RULES = """
from hookline import BEFORE_TOOL, HookResult, guard

@guard(BEFORE_TOOL, tools="*")
def no_rm(ctx, request):
    return HookResult.block("no") if ctx.depth >= 0 and "rm" in str(request.arguments) else None
"""


def run_line(number=0, **info):
    ids = {"run_id": f"run_{number}", "agent": "bob"}
    return ["run", number, {"ids": ids, "time": 1e9, "task": "t", **info}]


def moment(n, run=0, **payload):
    fields = {"id": f"call_{n}", "name": "shell", "arguments": {"command": "rm x"}, **payload}
    return ["before_tool", "shell", run, n, 0.1, 0.1, fields]


END = ["end", 0, {"status": "completed"}]
DEEP_JSON = '["before_tool","shell",0,0,0.1,0.1,' + '{"a":' * 50_000 + "1" + "}" * 50_000 + "]"
WRONG_TYPES = [
    ["before_tool", "shell", 0, 1, 0.1, 0.1, [1, 2]],
    ["before_tool", "shell", 0, 2, 0.1, 0.1, {"id": 5, "name": [], "arguments": "x"}],
    ["before_llm", "", 0, 3, 0, 0, {"messages": "x"}],
    ["before_llm", "", 0, 4, 0, 0, {"messages": []}, None, None, {"kept": -3}],
    ["after_llm", "", 0, 5, 0, 0, {"tool_calls": [7]}],
    ["on_stop", "", 0, 6, 0, 0, {"signals": "abc"}],
    ["on_run_end", "", 0, 7, 0, 0, {"messages": []}, None, None, {"kept": 99}],
    [*moment(8), [["h", "guard", "block"]], ["nonsense"]],
    [*moment(9), [["h", "no phase", "replace", "", None, {"no_field": 1}]], ["block", "h"]],
    [*moment(10), [["h", "rewrite", "replace", "", None, {"arguments": 5}]]],
    ["approval_decided", "shell", 0, 11, 0, 0, {"call_id": {}, "decision": [], "by": 3}],
]
FILES = {
    "texts that control a terminal": [
        ["run", 0, {"ids": {"run_id": f"run_0{EVIL}", "agent": EVIL}, "time": 1e9, "task": EVIL, "model": EVIL}],
        ["after_llm", "", 0, 0, 0.1, 0.1, {"content": EVIL, "tool_calls": [{"id": EVIL, "name": EVIL}]}],
        [*moment(1, name=EVIL)[:7], [[EVIL, "guard", EVIL, EVIL, EVIL, {EVIL: EVIL}, None, EVIL]], [EVIL, EVIL, EVIL]],
        [EVIL, EVIL, 0, 2, 0.1, 0.1, {EVIL: EVIL}],
        ["label", EVIL, 0, 1, {"label": "denied", "call_id": "call_1", "by": EVIL, "note": EVIL}],
        ["end", 0, {"status": EVIL, "stop": EVIL, "stop_message": EVIL, "reply": EVIL}],
    ],
    "a time far in the future": [run_line(time=1e300), moment(0), END],
    "runs that are nested 3,000 levels deep": [
        run_line(),
        *(run_line(number, outer=number - 1) for number in range(1, 3000)),
        moment(0, run=2999),
        moment(1),
        END,
    ],
    "runs that started each other": [run_line(), run_line(1, outer=2), run_line(2, outer=1), moment(0, 2), END],
    "JSON that is nested 50,000 levels deep": [run_line(), DEEP_JSON, moment(1), END],
    "fields of other types": [run_line(), moment(0), *WRONG_TYPES, END],
    "numbers without bound": [run_line(), moment(10**30), run_line(10**25), moment(3, run=-7), moment(4), END],
    "bytes that are not text": [run_line(), moment(0, arguments={"command": "rm \udcff"}), moment(1), END],
}
COMMANDS = {
    "ls": ["record", "ls"],
    "show": ["record", "show", "last"],
    "show --json": ["record", "show", "last", "--json"],
    "export": ["record", "export", "--out", "out.moments"],
    "export --parquet": ["record", "export", "--parquet", "out.parquet"],
    "explain": ["explain", "records/a.moments", "--full"],
    "explain --html": ["explain", "records/a.moments", "--html", "out.html"],
    "diff": ["diff", "records/a.moments", "records/a.moments"],
    "backtest": ["backtest", "rules.py", "records"],
    "coverage": ["coverage", "rules.py", "records"],
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOOKLINE_RECORDS", str(tmp_path / "records"))
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "records").mkdir()
    (tmp_path / "rules.py").write_text(RULES)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("content", FILES)
def test_every_command_reads_what_it_can_and_prints_no_control_characters(content, command, folder, capsys):
    lines = [
        line if isinstance(line, str) else json.dumps(line, ensure_ascii=False, separators=(",", ":"))
        for line in FILES[content]
    ]
    text = "\n".join(['["hookline",{"format":1}]', *lines, ""])
    (folder / "records/a.moments").write_bytes(text.encode("utf-8", "surrogateescape"))
    try:
        code = run_app(COMMANDS[command])
    except Exception as error:
        code = report_error(error, COMMANDS[command])
    out, err = capsys.readouterr()
    assert code in (0, 5), err
    allowed = "\n\t" if command != "show --json" else "\n\t\x1b\x9b\u202e\u2066\u2028\x7f\r\x08\x07"  # for programs
    assert [c for c in out + err if not c.isprintable() and c not in allowed] == []
