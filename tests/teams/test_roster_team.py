"""Personalities that delegate to each other and hand conversations over."""

import asyncio

import pytest

from hookline import Agent, HookResult, ScriptedModel, Session, call, guard, hook, observer, tool
from hookline.plugins import Plugin
from hookline.teams.roster import Roster


@tool
def look() -> str:
    """Look."""
    return "seen"


class Company:
    """A roster with a scripted model: a list of turns for each personality id."""

    def __init__(self, folder, hooks=(), plugins=(), **parts):
        self.parts = {id: list(turns) for id, turns in parts.items()}
        self.tools = {}
        self.roster = Roster(
            Agent(
                "base",
                "",
                "base",
                llm=ScriptedModel([self.turn], loop=True),
                tools=[look],
                hooks=hooks,
                plugins=plugins,
            ),
            folder,
            first="boss",
        )

    def turn(self, request):
        id = next(message.content for message in request.messages if message.role == "system").split()[0]
        self.tools.setdefault(id, {spec.name: spec for spec in request.tools})
        return self.parts[id].pop(0)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "boss.toml").write_text('instructions = "boss"\ndelegates = ["coder", "critic"]')
    (tmp_path / "coder.toml").write_text('instructions = "coder"\ndescription = "Writes code"')
    (tmp_path / "critic.toml").write_text('instructions = "critic"\nplugins = []\ndelegates = ["coder"]')
    (tmp_path / "other.toml").write_text('instructions = "other"')
    return tmp_path


def test_only_personalities_with_delegates_are_offered_the_tools(folder):
    company = Company(folder, boss=["hi"], coder=["hi"])
    company.roster.run("x")
    company.roster.run("x", session=Session(personality_id="coder"))
    assert set(company.tools["boss"]) == {"look", "delegate", "handoff"}
    assert set(company.tools["coder"]) == {"look"}
    spec = company.tools["boss"]["delegate"]
    assert list(spec.parameters["properties"]["to"]["enum"]) == ["coder", "critic"]
    assert "coder: Writes code" in spec.description


def test_guards_of_the_base_apply_to_a_delegate(folder):
    @guard("before_tool", tools="look")
    def blind(ctx, payload):
        return HookResult.block("no")

    seen = []

    @observer("after_tool")
    def see(ctx, payload):
        seen.append((ctx.agent_name, payload.name, payload.outcome))

    company = Company(
        folder, [blind, see], boss=[call("delegate", to="coder", task="go"), "done"], coder=[call("look"), "code"]
    )
    result = company.roster.run("x")
    assert result.messages[2].content == "code"
    assert seen == [("coder", "look", "blocked"), ("boss", "delegate", "ok")]


def test_delegating_to_another_personality_is_rejected(folder):
    company = Company(
        folder, boss=[call("delegate", to="other", task="go"), call("handoff", to="other", message=""), "ok"]
    )
    result = company.roster.run("x")
    told = [message.content for message in result.messages if message.role == "tool"]
    assert len(told) == 2
    assert all("boss may not use other. Choose from: coder, critic." in text for text in told)


def test_the_plugin_filter_of_a_delegate_applies_in_its_run(folder):
    seen = []

    @observer("on_run_start")
    def see(ctx, payload):
        seen.append(ctx.agent_name)

    @tool
    def extra() -> str:
        """Extra."""
        return ""

    tasks = [[call("delegate", to="critic", task="go"), call("delegate", to="coder", task="go")], "done"]
    company = Company(folder, plugins=[Plugin("p", [see], [extra])], boss=tasks, critic=["bad"], coder=["good"])
    company.roster.run("x")
    assert seen == ["boss", "coder"]
    assert "extra" in company.tools["coder"]
    assert "extra" not in company.tools["critic"]


def test_after_a_handoff_the_other_personality_continues_and_keeps_the_session(folder):
    switched = []

    @observer("personality_switched")
    def see(ctx, payload):
        switched.append((payload.from_, payload.to))

    company = Company(folder, [see], boss=[call("handoff", to="coder", message="Write it.")], coder=["code", "more"])
    session = Session()
    result = company.roster.run("x", session=session)
    assert (result.reply, session.personality_id) == ("code", "coder")
    assert company.roster.run("and?", session=session).reply == "more"
    assert switched == [("boss", "coder")]


async def test_callers_can_follow_up_a_handoff(folder):
    company = Company(folder, boss=[call("handoff", to="coder", message="Write it.")], coder=["code"])
    session = Session()
    first = await company.roster.start("x", session=session).result()
    task = company.roster.follow_up(session, first)
    assert "Write it." in task
    second = await company.roster.start(task, session=session).result()
    assert second.reply == "code"
    assert company.roster.follow_up(session, second) is None


def test_a_hook_can_change_the_personality_that_takes_over(folder):
    @hook("personality_switched")
    def stricter(ctx, payload):
        return {"personality": {"id": "other", "instructions": "guest", "tools": []}}

    company = Company(folder, [stricter], boss=[call("handoff", to="coder", message="")], guest=["careful"])
    session = Session()
    assert company.roster.run("x", session=session).reply == "careful"
    assert session.personality_id == "other"
    assert company.tools["guest"] == {}


@pytest.mark.parametrize("answer", [ZeroDivisionError("oh"), {"personality": "nobody"}, {"personality": {"x": 1}}])
def test_a_failing_hook_rejects_the_handoff(folder, answer):
    @hook("personality_switched")
    def decide(ctx, payload):
        if isinstance(answer, Exception):
            raise answer
        return answer

    company = Company(folder, [decide], boss=[call("handoff", to="coder", message=""), "still me"])
    session = Session()
    result = company.roster.run("x", session=session)
    assert (result.reply, session.personality_id) == ("still me", "boss")
    assert "the switch to coder was rejected" in result.messages[2].content


def test_a_handoff_rejected_after_the_tool_changes_nothing(folder):
    @hook("after_tool", tools="handoff")
    def take_back(ctx, payload):
        return payload.replace(error="no, you go on", result="no, you go on")

    @hook("personality_switched")
    def change(ctx, payload):
        return {"personality": {"instructions": "guest"}}

    company = Company(folder, [take_back, change], boss=[call("handoff", to="coder", message=""), "still me"])
    session = Session()
    assert company.roster.run("x", session=session).reply == "still me"
    assert (session.personality_id, dict(session.personality_changes)) == ("boss", {})


def test_an_unknown_delegate_is_reported_and_the_rest_works(folder):
    (folder / "boss.toml").write_text('instructions = "boss"\ndelegates = ["coder", "critc"]')
    company = Company(folder, boss=["hi"])
    assert company.roster.run("x").reply == "hi"
    (problem,) = company.roster.problems.values()
    assert "delegates: there is no personality 'critc'. Did you mean 'critic'?" in problem
    assert list(company.tools["boss"]["delegate"].parameters["properties"]["to"]["enum"]) == ["coder"]


def test_a_changed_delegate_takes_effect_in_its_next_run(folder):
    def edit(request):
        (folder / "coder.toml").write_text('instructions = "newcoder"')
        return call("delegate", to="coder", task="go")

    company = Company(folder, boss=["placeholder"], newcoder=["new"])
    company.parts["boss"] = [edit, "done"]
    turn = company.turn

    def turn_or_edit(request):
        found = turn(request)
        return found(request) if callable(found) else found

    company.roster.base.model.turns = [turn_or_edit]
    assert company.roster.run("x").messages[2].content == "new"


def test_a_handoff_fires_for_the_plugins_of_the_new_personality(folder):
    @hook("personality_switched")
    def restrict(ctx, switched):
        return {"personality": {"tools": []}} if switched.to == "coder" else None

    (folder / "critic.toml").write_text('instructions = "critic"\nplugins = ["other"]\ndelegates = ["coder"]')
    (folder / "coder.toml").write_text('instructions = "coder"\nplugins = ["rules"]')
    plugins = [Plugin("rules", hooks=[restrict]), Plugin("other")]
    company = Company(
        folder, plugins=plugins, critic=[call("handoff", to="coder", message="go"), "refused"], coder=["hi"]
    )
    session = Session(personality_id="critic")
    assert company.roster.run("x", session=session).reply == "hi"
    assert session.personality_id == "coder"
    assert company.tools["coder"] == {}


def test_a_handoff_does_not_widen_the_plugin_filter_of_the_run(folder):
    asked = []

    @hook("personality_switched")
    def ask(ctx, switched):
        asked.append(switched.to)

    (folder / "coder.toml").write_text('instructions = "coder"\nplugins = ["rules"]')
    company = Company(
        folder,
        plugins=[Plugin("rules", hooks=[ask])],
        boss=[call("handoff", to="coder", message="go")],
        coder=["hi"],
    )
    company.roster.run("x", allowed_plugins=[])
    assert asked == []


def test_the_guards_of_a_personality_apply_after_its_handoff_until_a_person_switches(folder):
    (folder / "boss.toml").write_text(
        'instructions = "boss"\ndelegates = ["coder"]\nguards = [{ use = "rules.py:blind" }]'
    )
    (folder / "rules.py").write_text(
        "from hookline import HookResult, guard\n"
        "@guard('before_tool', tools='look')\n"
        "def blind(ctx, request): return HookResult.block('Do not look.')\n"
    )
    turns = [call("look"), "x"]
    company = Company(folder, boss=[call("handoff", to="coder", message="go")], coder=[*turns * 3])
    session = Session("s")

    def outcome(task):
        company.roster.run(task, session=session)
        return [message.content for message in session.messages if message.name == "look"][-1]

    assert outcome("x") == "Do not look."
    again = Session("s", session.messages, personality_id="coder", handed_over_by=session.handed_over_by)
    session = again  # as a store loads it
    assert outcome("go on") == "Do not look."
    asyncio.run(company.roster.switch(session, "other"))
    asyncio.run(company.roster.switch(session, "coder"))
    assert session.handed_over_by == ()
    assert outcome("go on") == "seen"
