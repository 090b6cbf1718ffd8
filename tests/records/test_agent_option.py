"""``Agent(record=…)`` and the settings ``record`` and ``records``."""

import json

import pytest

from hookline import BEFORE_TOOL, Agent, HookRegistry, HookResult, RegistrationError, ScriptedModel, call, reply, tool
from hookline.config import Settings
from hookline.config.errors import ConfigError
from hookline.config.factory import build_agent, make_context
from hookline.hooks import PassThrough
from hookline.records import RecordHook, read_runs
from hookline.records.segments import default_records_path


@tool(effects=[])
def add(a: int, b: int = 2) -> int:
    """Add."""
    return a + b


def agent(**options):
    return Agent("x", llm=ScriptedModel([call("add", a=1), reply("three")]), tools=[add], **options)


def tasks(folder):
    return [run.info.task for run in read_runs([folder])]


def test_an_agent_records_to_a_folder(tmp_path):
    agent(record=tmp_path / "a").run("One")
    agent(record=str(tmp_path / "a")).run("Two")
    assert tasks(tmp_path / "a") == ["One", "Two"]


def test_an_agent_records_to_the_folder_of_the_project(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    agent(record=True).run("One")
    assert tasks(default_records_path(".")) == ["One"]


def test_an_agent_does_not_record_by_default(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    agent().run("One")
    agent(record=False).run("Two")
    assert list(tmp_path.rglob("*.moments")) == []


def test_a_hook_with_options_can_be_given(tmp_path):
    agent(record=RecordHook(tmp_path, points=[BEFORE_TOOL])).run("One")
    (run,) = read_runs([tmp_path])
    assert {moment.point for moment in run.moments} == {"before_tool"}


def test_an_agent_with_an_interceptor_is_recorded_too(tmp_path):
    class Block(PassThrough):
        def intercept(self, point, payload, ctx):
            return HookResult.block("No.") if point == BEFORE_TOOL else None

    seen = agent(hooks=[Block()], record=tmp_path)
    seen.run("One")
    (run,) = read_runs([tmp_path])
    assert [moment.point for moment in run.moments].count("before_tool") == 1
    assert any(decision.hook == "Block" for moment in run.moments for decision in moment.decisions)


def test_agents_that_share_a_registry_record_each_run_once(tmp_path):
    registry = HookRegistry()
    for number in range(2):
        agent(hooks=registry, record=tmp_path).run(f"Task {number}")
    assert tasks(tmp_path) == ["Task 0", "Task 1"]
    assert len([hook for hook in registry if isinstance(hook, RecordHook)]) == 1


def test_a_nested_run_of_an_agent_that_records_to_the_same_folder_is_recorded_once(tmp_path):
    inner = agent(record=tmp_path)

    @tool(effects=[])
    async def ask(question: str) -> str:
        """Ask another agent."""
        return (await inner.arun(question)).reply

    outer = Agent("o", llm=ScriptedModel([call("ask", question="?"), reply("ok")]), tools=[ask], record=tmp_path)
    outer.run("Outer")
    (run,) = read_runs([tmp_path])
    assert [each.info.task for each in run.tree()] == ["Outer", "?"]


def test_a_nested_run_of_an_agent_without_the_option_inherits_it(tmp_path):
    inner = agent()

    @tool(effects=[])
    async def ask(question: str) -> str:
        """Ask another agent."""
        return (await inner.arun(question)).reply

    Agent("o", llm=ScriptedModel([call("ask", question="?"), reply("ok")]), tools=[ask], record=tmp_path).run("Outer")
    (run,) = read_runs([tmp_path])
    assert [each.info.task for each in run.tree()] == ["Outer", "?"]


@pytest.mark.parametrize("value", [3, "", ["x"], None])
def test_another_value_is_rejected(value):
    with pytest.raises(RegistrationError, match="record= takes True, a folder or a RecordHook"):
        agent(record=value)


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "turns.json"
    path.write_text('["Hello."]')
    return path


def run_with(settings):
    build_agent(settings).run("Hi", ctx=make_context(settings))


def test_the_settings_turn_recording_on(tmp_path, script):
    settings = Settings(model=f"scripted:{script}", record=True, records=str(tmp_path / "r"), audit=None, runs=None)
    run_with(settings)
    assert tasks(tmp_path / "r") == ["Hi"]


def test_without_the_setting_nothing_is_recorded(tmp_path, script):
    run_with(Settings(model=f"scripted:{script}", records=str(tmp_path / "r"), audit=None, runs=None))
    assert not (tmp_path / "r").exists()


def test_a_hook_that_the_settings_declare_replaces_the_default_one(tmp_path, script):
    from hookline.config.settings import DeclaredHook

    declared = DeclaredHook("RecordHook", {"folder": str(tmp_path / "own"), "points": "all"})
    settings = Settings(
        model=f"scripted:{script}", record=True, records=str(tmp_path / "r"), hooks=(declared,), audit=None, runs=None
    )
    run_with(settings)
    assert tasks(tmp_path / "own") == ["Hi"]
    assert not (tmp_path / "r").exists()


def test_a_file_is_not_a_folder_for_records(tmp_path, script):
    with pytest.raises(ConfigError, match="is a file: name a folder"):
        build_agent(Settings(model=f"scripted:{script}", record=True, records=str(script), audit=None, runs=None))


def test_tools_cannot_write_to_the_records(tmp_path):
    folder = tmp_path / "records"
    turns = tmp_path / "turns.json"
    target = folder / "labels.jsonl"
    write = {"tool": "write_file", "arguments": {"path": str(target), "content": "x"}}
    turns.write_text(json.dumps([write, "ok"]))
    settings = Settings(
        model=f"scripted:{turns}",
        record=True,
        records=str(folder),
        folder=str(tmp_path),
        write=True,
        audit=None,
        runs=None,
    )
    run_with(settings)
    assert not target.exists()
    (run,) = read_runs([folder])
    (moment,) = [moment for moment in run.moments if moment.point == "before_tool"]
    assert moment.verdict.verb == "block"
