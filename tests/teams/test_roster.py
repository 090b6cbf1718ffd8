"""Roster: personalities as agents, and switching between them."""

import asyncio
import logging
import textwrap

import pytest

from hookline import (
    Agent,
    AgentContext,
    HookRegistry,
    HookResult,
    Limits,
    ScriptedModel,
    Session,
    call,
    guard,
    hook,
    observer,
    tool,
)
from hookline.config.errors import ConfigError
from hookline.config.trust import TrustStore
from hookline.plugins import Plugin
from hookline.plugins.trust import TrustedFiles, digest, only_trusted
from hookline.stores import JsonSessionStore, SqliteSessionStore
from hookline.teams.errors import SwitchRefusedError
from hookline.teams.roster import Roster


@tool
def wipe() -> str:
    """Wipe."""
    return "wiped"


@tool
def look() -> str:
    """Look."""
    return "seen"


def who(request):
    """Answer with the instructions that the model was given."""
    return next(message.content for message in request.messages if message.role == "system")


def put(folder, name, text='description = "x"'):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "personalities"
    put(made, "coder.toml", 'description = "Writes code"\ninstructions = "coder"')
    put(made, "critic.toml", 'description = "Finds faults"\ninstructions = "critic"\ntools = ["look"]')
    return made


def crew(folder, turns=(who,), *, first="", hooks=(), plugins=(), home=None, **options):
    model = ScriptedModel(turns, loop=True)
    base = Agent(
        "base", "", "base", llm=model, tools=[look, wipe], hooks=hooks, plugins=plugins, params={"a": 1}, **options
    )
    return Roster(base, folder, first=first, home=home or folder)


def offered(agent):
    return [tool.name for tool in agent.tools]


# Agents of personalities.


def test_each_personality_is_an_agent_derived_from_the_base(folder):
    put(folder, "writer.toml", 'params = { b = 2 }\nmax_steps = 99\ntools = ["*", "tools.py"]')
    put(folder, "tools.py", 'from hookline import tool\n@tool\ndef more() -> str:\n    """More."""\n    return ""\n')
    roster = crew(folder, limits=Limits(steps=5))
    assert list(roster) == ["coder", "critic", "writer"]
    assert len(roster) == 3
    assert {name: agent.instructions for name, agent in roster.items()} == {
        "coder": "coder",
        "critic": "critic",
        "writer": "base",
    }
    assert offered(roster["coder"]) == ["look", "wipe"]
    assert offered(roster["critic"]) == ["look"]
    writer = roster["writer"]
    assert offered(writer) == ["look", "wipe", "more"]
    assert dict(writer.params) == {"a": 1, "b": 2}
    assert writer.limits.steps == 5  # at most that of the settings
    assert writer.model is roster.base.model
    assert (writer.name, roster["coder"].description) == ("writer", "Writes code")


def test_a_personality_needs_the_deps_of_the_base(folder):
    roster = crew(folder, deps_type=dict)
    for missing in (lambda: roster.run("x"), lambda: roster["coder"].run("x")):
        with pytest.raises(TypeError, match="needs deps: give it a dict"):
            missing()
    assert roster.run("x", deps={}).status == roster["coder"].run("x", deps={}).status == "completed"


def test_a_model_is_made_once_for_all_personalities_that_use_it(folder):
    made = []

    def models(name):
        made.append(name)
        return ScriptedModel([who], name=name)

    put(folder, "a.toml", 'model = "fast"')
    put(folder, "b.toml", 'model = "fast"')
    roster = Roster(Agent("base", llm=ScriptedModel()), folder, models=models)
    assert roster["a"].model is roster["b"].model
    assert made == ["fast"]
    put(folder, "a.toml", 'model = "fast"\ndescription = "changed"')
    assert roster["a"].description == "changed"
    assert made == ["fast"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('tools = ["lok"]', "tools: there is no tool 'lok'. Did you mean 'look'? There are look, wipe, safe_tool."),
        ('tools = ["tools.py"]', "there is no file"),
        ('tools = ["look", "twice.py"]', "two tools are named 'look'"),
        ('plugins = ["nope"]', "plugins: 'nope' is not active in the settings. Active plugins: safe"),
        ('tools = ["safe_tool"]\nplugins = []', "'safe_tool' belongs to the plugin 'safe': list that in plugins too"),
        ('guards = ["NoSuchHook"]', "there is no built-in hook 'NoSuchHook'"),
        ('guards = ["twice.py:bundle"]', "guards: p is a plugin"),
        ('id = "Coder"', "id: 'Coder' is also the id of"),
        ('guards = ["broken.py"]', "broken.py, line 1: ZeroDivisionError"),
        ('model = "nobody:x"', "nobody"),
    ],
)
def test_an_invalid_file_is_reported_and_does_not_affect_the_others(folder, caplog, text, words):
    put(folder, "broken.py", "1 / 0")
    put(
        folder,
        "twice.py",
        """
        from hookline import tool
        from hookline.plugins import Plugin
        @tool
        def look() -> str:
            "Look again."
            return ""
        bundle = Plugin("p")
        """,
    )
    path = put(folder, "zzz.toml", text)

    @tool
    def safe_tool() -> str:
        """Safe."""
        return ""

    roster = crew(folder, plugins=[Plugin("safe", tools=[safe_tool])])
    assert list(roster) == ["coder", "critic"]
    (problem,) = roster.problems.values()
    assert problem.startswith(str(path))
    assert words in problem
    assert [record.getMessage() for record in caplog.records] == [problem]


def test_the_first_personality_and_the_folder_must_exist(folder, tmp_path):
    with pytest.raises(ConfigError, match="there is no personality 'codr'. Did you mean 'coder'\\? There are coder"):
        crew(folder, first="codr")
    with pytest.raises(ConfigError, match="there is no folder .*nowhere"):
        crew(tmp_path / "nowhere")
    put(folder, "writer.toml", "rubbish = ")
    with pytest.raises(ConfigError, match="there is no personality 'writer'.*writer.toml is not valid TOML"):
        crew(folder, first="writer")


# Guards.


def no_wiping(text="never"):
    @guard("before_tool", tools="wipe")
    def rule(ctx, payload):
        return HookResult.block(text)

    return rule


def outcomes(result):
    return [outcome for step in result.steps for outcome in step.outcomes]


def test_guards_of_the_base_apply_to_all_personalities_even_if_registered_later(folder):
    roster = crew(folder, [call("wipe"), "done"])
    coder = Session(personality_id="coder")
    assert outcomes(roster.run("x", session=coder)) == ["ok"]
    take_out = roster.hooks.register(no_wiping())
    assert outcomes(roster.run("x", session=coder)) == ["blocked"]
    assert outcomes(roster["coder"].run("x")) == ["blocked"]
    take_out()
    assert outcomes(roster.run("x", session=coder)) == ["ok"]


def test_guards_of_a_personality_apply_only_to_it_and_after_those_of_the_base(folder):
    put(folder, "coder.toml", 'guards = ["hooks.py"]')
    put(
        folder,
        "hooks.py",
        """
        from hookline import guard, HookResult
        @guard("before_tool", tools="wipe")
        def coders_rule(ctx, payload):
            return HookResult.block("not the coder")
        """,
    )
    put(folder, "other.toml", 'description = "x"')
    roster = crew(folder, [call("wipe"), "done"])
    blocked = roster.run("x", session=Session(personality_id="coder"))
    assert outcomes(blocked) == ["blocked"]
    assert "not the coder" in blocked.messages[2].content
    assert outcomes(roster.run("x", session=Session(personality_id="other"))) == ["ok"]
    assert outcomes(roster.run("x")) == ["ok"]
    roster.hooks.register(no_wiping("nobody"))
    assert "nobody" in roster.run("x", session=Session(personality_id="coder")).messages[2].content


# Plugins.


def plugged(folder):
    seen = []

    @observer("on_run_start")
    def see(ctx, payload):
        seen.append(ctx.agent_name)

    @tool
    def extra() -> str:
        """Extra."""
        return "extra"

    put(folder, "bare.toml", "plugins = []")
    put(folder, "full.toml", 'plugins = ["p"]')
    roster = crew(folder, [lambda r: " ".join(t.name for t in r.tools)], plugins=[Plugin("p", [see], [extra])])
    return roster, seen


def test_only_the_plugins_of_the_active_personality_are_used(folder):
    roster, seen = plugged(folder)
    says = {id: roster.run("x", session=Session(personality_id=id)).reply for id in ("bare", "coder", "full")}
    assert says == {"bare": "look wipe", "coder": "look wipe extra", "full": "look wipe extra"}
    assert seen == ["coder", "full"]  # each once
    assert roster.plugins_for(Session(personality_id="bare")) == ()
    assert roster.plugins_for(Session(personality_id="full")) == ("p",)
    assert roster.plugins_for(Session()) is None


def test_a_run_can_only_narrow_the_plugins(folder):
    roster, seen = plugged(folder)
    assert roster.run("x", session=Session(personality_id="bare"), allowed_plugins=["p"]).reply == "look wipe"
    assert roster.run("x", session=Session(personality_id="full"), allowed_plugins=[]).reply == "look wipe"
    ctx = AgentContext(allowed_plugins=[], session=Session(personality_id="full"))
    assert roster.run("x", ctx=ctx).reply == "look wipe"
    assert seen == []


def test_the_plugin_filter_of_a_personality_applies_in_every_kind_of_run(folder):
    roster, seen = plugged(folder)
    assert roster["bare"].run("x").reply == "look wipe"
    assert seen == []


def test_a_plugin_removed_from_the_base_is_removed_from_all_personalities(folder):
    roster, seen = plugged(folder)
    roster.base.unplug("p")
    assert roster.run("x", session=Session(personality_id="coder")).reply == "look wipe"
    assert seen == []


def test_a_plugin_removed_during_a_run_of_a_personality_takes_its_tools_along(folder):
    @tool
    def extra() -> str:
        """Extra."""
        return "extra"

    @hook("after_tool", tools="look")
    def take_out(ctx, result):
        roster.base.unplug("p")

    turns = [call("look"), call("extra"), lambda request: " ".join(spec.name for spec in request.tools)]
    roster = crew(folder, turns, hooks=[take_out], plugins=[Plugin("p", [], [extra])])
    result = roster.run("x", session=Session(personality_id="coder"))
    assert (result.reply, [step.outcomes for step in result.steps]) == ("look wipe", [("ok",), ("error",), ()])


def test_a_personality_cannot_use_plugins_that_the_base_may_not_use(folder):
    put(folder, "full.toml", 'plugins = ["p", "q"]')
    plugins = [Plugin("p", [idle_hook()]), Plugin("q", [idle_hook()])]
    roster = crew(folder, plugins=plugins, allowed_plugins=["q"])
    assert roster.plugins_for(Session(personality_id="full")) == ("q",)
    assert roster.plugins_for(Session(personality_id="coder")) == ("q",)


def idle_hook():
    return observer("on_run_end")(lambda ctx, result: None)


def test_a_run_can_only_narrow_the_allowed_plugins_of_its_agent():
    seen = []

    @observer("on_run_start")
    def see(ctx, payload):
        seen.append(ctx.allowed_plugins)

    agent = Agent("a", llm=ScriptedModel(["x"], loop=True), hooks=[see], allowed_plugins=["p", "q"])
    agent.run("x")
    agent.run("x", allowed_plugins=["q", "r"])
    agent.run("x", ctx=AgentContext(allowed_plugins=["p", "r"]))
    assert seen == [("p", "q"), ("q",), ("p",)]
    with pytest.raises(TypeError, match="allowed_plugins must be a list of names"):
        Agent("a", llm=ScriptedModel(), allowed_plugins="p")


# Changed files.


def test_a_changed_file_takes_effect_in_the_next_run(folder):
    roster = crew(folder, first="coder")
    session = Session()
    assert roster.run("x", session=session).reply == "coder"
    put(folder, "coder.toml", 'instructions = "other"')  # within the same tick of the clock, and as long
    assert roster.run("x", session=session).reply == "other"
    put(folder, "new.toml", 'instructions = "new"')
    assert roster.run("x", session=Session(personality_id="new")).reply == "new"


def test_changed_code_takes_effect_in_the_next_run(folder):
    put(folder, "a.toml", 'tools = ["tools.py"]')
    code = 'from hookline import tool\n@tool\ndef one() -> str:\n    """One."""\n    return ""\n'
    put(folder, "tools.py", code)
    roster = crew(folder)
    assert offered(roster["a"]) == ["one"]
    put(folder, "tools.py", code.replace("one", "two"))
    assert offered(roster["a"]) == ["two"]


def test_agents_stay_the_same_while_their_files_do_not_change(folder):
    roster = crew(folder)
    before = dict(roster.items())
    put(folder, "coder.toml", (folder / "coder.toml").read_text())
    put(folder, "new.toml")
    assert roster["coder"] is before["coder"]
    assert roster["critic"] is before["critic"]


def test_a_changed_file_is_used_after_the_user_has_trusted_it_elsewhere_while_the_roster_runs(folder, tmp_path):
    def trust():  # as "hookline trust" does in another process
        files = {path.resolve(): digest(path.read_bytes()) for path in folder.glob("*.toml")}
        TrustStore(tmp_path / "trust.json").trust(tmp_path / "hookline.toml", files)

    trust()
    with only_trusted(TrustedFiles([tmp_path], TrustStore(tmp_path / "trust.json").is_trusted)):
        roster, session = crew(folder, first="coder"), Session()
        assert roster.run("x", session=session).reply == "coder"
        path = put(folder, "coder.toml", 'instructions = "changed"')
        assert roster.run("x", session=session).reply == "coder"
        assert "is not trusted, or has changed:" in roster.problems[str(path)]
        trust()
        assert roster.run("x", session=session).reply == "changed"


def test_the_last_valid_version_is_used_until_a_broken_file_is_fixed(folder, caplog):
    roster = crew(folder, first="coder")
    session = Session()
    path = put(folder, "coder.toml", "instructions = ")
    caplog.set_level(logging.INFO)
    for _ in range(3):
        assert roster.run("x", session=session).reply == "coder"
    assert list(roster) == ["coder", "critic"]
    assert roster.problems[str(path)].endswith("; the last valid version is used")
    assert len(caplog.records) == 1
    put(folder, "coder.toml", 'instructions = "mended"')
    assert roster.run("x", session=session).reply == "mended"
    assert roster.problems == {}
    assert caplog.records[-1].getMessage() == f"{path} is valid again"


def test_a_file_that_is_empty_while_it_is_saved_does_not_remove_guards(folder):
    put(folder, "coder.toml", 'guards = [{ use = "RateLimitHook", args = { per_tool = { wipe = 1 } } }]')
    roster = crew(folder, [call("wipe"), call("wipe"), "done"])
    put(folder, "coder.toml", "")
    assert outcomes(roster.run("x", session=Session(personality_id="coder"))) == ["ok", "blocked"]


def test_guards_keep_their_state_when_only_the_base_changes(folder):
    put(folder, "coder.toml", 'guards = [{ use = "RateLimitHook", args = { per_minute = 1 } }]')
    roster = crew(folder, [call("wipe"), "done"], plugins=[Plugin("p")])
    session = Session(personality_id="coder")
    assert outcomes(roster.run("x", session=session)) == ["ok"]
    before = roster["coder"]
    roster.base.unplug("p")
    assert outcomes(roster.run("x", session=session)) == ["blocked"]
    assert roster["coder"] is not before


def test_a_personality_is_loaded_once_its_missing_code_appears(folder, monkeypatch):
    monkeypatch.setattr("hookline.teams.personality_folder.RACY", 0)
    put(folder, "a.toml", 'guards = ["rules.py"]')
    roster = crew(folder)
    assert "a" not in roster
    put(folder, "rules.py", "from hookline import guard\n@guard('before_tool')\ndef r(ctx, p): ...\n")
    assert "a" in roster
    assert roster.problems == {}


def test_sessions_of_a_deleted_personality_fall_back_to_the_first_with_one_note(folder, caplog):
    roster = crew(folder, first="coder")
    session = Session("s", personality_id="critic")
    assert roster.run("x", session=session).reply == "critic"
    (folder / "critic.toml").unlink()
    result = roster.run("x", session=session)
    assert result.reply == "(The personality critic was deleted; coder answers now.)\n\ncoder"
    assert session.personality_id == "coder"
    assert "critic was deleted" in caplog.text
    assert roster.run("x", session=session).reply == "coder"


def test_the_first_personality_stays_even_if_its_file_is_deleted(folder):
    roster = crew(folder, first="coder")
    (folder / "coder.toml").unlink()
    assert roster.run("x").reply == "coder"
    assert "was deleted; the last valid version is used" in next(iter(roster.problems.values()))


def test_all_personalities_stay_while_the_folder_cannot_be_read(folder, tmp_path):
    roster = crew(folder, first="coder")
    folder.rename(tmp_path / "away")
    assert roster.run("x", session=Session(personality_id="critic")).reply == "critic"
    assert "cannot be read" in roster.problems[str(folder)]
    (tmp_path / "away").rename(folder)
    assert roster.problems == {}


def test_the_first_file_with_an_id_keeps_it(folder):
    roster = crew(folder)
    put(folder, "aaa.toml", 'id = "coder"\ninstructions = "thief"')
    assert roster["coder"].instructions == "coder"
    assert "also the id of" in next(iter(roster.problems.values()))


# Switching.


def test_a_session_starts_with_the_first_personality(folder):
    seen = []

    @observer("session_start")
    def see(ctx, payload):
        seen.append(payload.personality_id)

    roster = crew(folder, first="critic", hooks=[see])
    session = Session()
    assert roster.run("x", session=session).reply == "critic"
    assert session.personality_id == "critic"
    assert roster.start("x").wait().reply == "critic"
    assert seen == ["critic", "critic"]
    assert crew(folder).run("x").reply == "base"


async def test_a_switch_takes_effect_in_the_next_run_and_fires_its_point(folder):
    seen = []

    @hook("personality_switched")
    def see(ctx, payload):
        seen.append((payload.session_id, payload.from_, payload.to, ctx.session.personality_id))

    roster = crew(folder, first="coder", hooks=[see])
    session = Session("s")
    assert (await roster.arun("x", session=session)).reply == "coder"
    assert (await roster.switch(session, "CRITIC")).id == "critic"
    assert (await roster.arun("x", session=session)).reply == "critic"
    assert (await roster.switch(session, "default")).id == "coder"
    assert (await roster.switch(session, "coder")).id == "coder"
    assert seen == [("s", "coder", "critic", "coder"), ("s", "critic", "coder", "critic")]


@pytest.mark.parametrize("name", ["codr", "../coder", "", "none", "x" * 10_000])
async def test_a_switch_to_an_unknown_personality_is_rejected(folder, name):
    roster = crew(folder, first="coder")
    session = Session(personality_id="critic")
    if name == "":
        assert (await roster.switch(session, name)).id == "coder"
        return
    with pytest.raises(SwitchRefusedError, match="there is no personality") as error:
        await roster.switch(session, name)
    assert "There are coder, critic" in str(error.value)
    assert len(str(error.value)) < 300
    assert session.personality_id == "critic"


@pytest.mark.parametrize("how", ["raise", "nonsense", "unknown", "field", "value", "tool", "delegates"])
async def test_a_failing_hook_rejects_the_switch(folder, how):
    answers = {
        "nonsense": 7,
        "unknown": {"personality": "nobody"},
        "field": {"personality": {"colour": "red"}},
        "value": {"personality": {"max_steps": "many"}},
        "tool": {"personality": {"tools": ["no_such"]}},
        "delegates": {"personality": {"delegates": ["coder"]}},
    }

    @hook("personality_switched")
    def decide(ctx, payload):
        if how == "raise":
            raise ZeroDivisionError("oh")
        return answers[how]

    roster = crew(folder, first="coder", hooks=[decide])
    session = Session()
    with pytest.raises(SwitchRefusedError, match="the switch to critic was rejected"):
        await roster.switch(session, "critic")
    assert session.personality_id == ""
    assert not session.personality_changes
    assert (await roster.arun("x", session=session)).reply == "coder"


async def test_a_hook_can_choose_another_personality(folder):
    @hook("personality_switched")
    def instead(ctx, payload):
        return {"personality": "critic"} if payload.to == "coder" else None

    roster = crew(folder, hooks=[instead])
    session = Session()
    assert (await roster.switch(session, "coder")).id == "critic"
    assert (await roster.arun("x", session=session)).reply == "critic"


async def test_a_hook_can_change_fields_for_one_session(folder):
    @hook("personality_switched")
    def stricter(ctx, payload):
        if payload.session_id == "guest":
            return {"personality": {"instructions": "guest", "tools": ["look"], "plugins": []}}
        return None

    roster = crew(folder, hooks=[stricter])
    guest, member = Session("guest"), Session("member")
    for session in (guest, member):
        await roster.switch(session, "coder")
    assert (await roster.arun("x", session=guest)).reply == "guest"
    assert offered(roster.agent_for(guest)) == ["look"]
    assert roster.plugins_for(guest) == ()
    assert (await roster.arun("x", session=member)).reply == "coder"
    assert roster.agent_for(member) is roster["coder"]
    put(folder, "coder.toml", 'max_steps = 3\ninstructions = "new"')
    assert (await roster.arun("x", session=guest)).reply == "guest"
    assert roster.agent_for(guest).limits.steps == 3  # unchanged fields follow the file
    await roster.switch(guest, "critic")
    assert roster.active(guest).instructions == "guest"


async def test_changed_guards_are_added_to_those_of_the_personality(folder):
    put(folder, "coder.toml", 'guards = [{ use = "RateLimitHook", args = { per_minute = 1 } }]')

    @hook("personality_switched")
    def stricter(ctx, payload):
        return {"personality": {"guards": [{"use": "RateLimitHook", "args": {"per_tool": {"look": 1}}}]}}

    roster = crew(folder, [call("wipe"), call("wipe"), "done"], hooks=[stricter])
    session = Session()
    await roster.switch(session, "coder")
    assert outcomes(await roster["coder"].arun("x")) == ["ok", "blocked"]
    result = await roster.arun("x", session=session)  # the same guard with its state
    assert outcomes(result) == ["blocked", "blocked"]
    assert len(roster.active(session).guards) == 2


@pytest.mark.parametrize("kind", [JsonSessionStore, SqliteSessionStore])
async def test_the_personality_and_its_changes_survive_a_restart(folder, tmp_path, kind):
    @hook("personality_switched")
    def stricter(ctx, payload):
        return {"personality": {"instructions": "guest", "tools": ["look"]}}

    store = kind(tmp_path / "sessions.db")
    roster = crew(folder, hooks=[stricter])
    session = Session("s")
    await roster.switch(session, "coder")
    store.save(session)
    again = store.load("s")
    assert again.personality_id == "coder"
    other = crew(folder)
    assert (await other.arun("x", session=again)).reply == "guest"
    assert offered(other.agent_for(again)) == ["look"]


async def test_a_session_whose_changes_became_invalid_does_not_run(folder):
    roster = crew(folder)
    session = Session(personality_id="coder", personality_changes={"id": "coder", "tools": ["gone"]})
    with pytest.raises(ConfigError, match="personality coder, as changed in this session: tools: there is no tool"):
        roster.start("x", session=session)
    await roster.switch(session, "coder")
    assert (await roster.arun("x", session=session)).reply == "coder"


async def test_a_switch_fires_for_the_plugins_of_the_new_personality_only(folder):
    asked = []

    @hook("personality_switched")
    def see(ctx, payload):
        asked.append(payload.to)

    put(folder, "bare.toml", "plugins = []")
    roster = crew(folder, plugins=[Plugin("p", [see])])
    session = Session()
    for name in ("bare", "coder", "bare", "critic"):
        await roster.switch(session, name)
    assert asked == ["coder", "critic"]


async def test_a_switch_fires_for_the_guards_of_the_new_personality(folder):
    rule = """
        from hookline import hook

        @hook("personality_switched")
        def members_only(ctx, payload):
            if not ctx.session.metadata.get("member"):
                raise PermissionError("members only")
        """
    put(folder, "rules.py", rule)
    put(folder, "club.toml", 'guards = ["rules.py:members_only"]')
    roster = crew(folder)
    guest, member = Session("guest"), Session("member", metadata={"member": True})
    with pytest.raises(SwitchRefusedError, match="members only"):
        await roster.switch(guest, "club")
    assert (await roster.switch(member, "club")).id == "club"
    assert roster.hooks_for(member) is roster["club"].hooks
    assert roster.hooks_for(guest) is roster.hooks


async def test_the_second_of_two_concurrent_switches_in_a_session_is_rejected(folder):
    entered, go = asyncio.Event(), asyncio.Event()

    @hook("personality_switched")
    async def slow(ctx, payload):
        entered.set()
        await go.wait()

    roster = crew(folder, hooks=[slow])
    session, other = Session("s"), Session("other")
    first = asyncio.create_task(roster.switch(session, "coder"))
    await entered.wait()
    with pytest.raises(SwitchRefusedError, match="another switch is in progress"):
        await roster.switch(session, "critic")
    beside = asyncio.create_task(roster.switch(other, "critic"))
    assert (await roster.arun("x", session=session)).reply == "base"  # no change before all hooks have agreed
    go.set()
    assert [(await first).id, (await beside).id] == ["coder", "critic"]
    assert (await roster.switch(session, "critic")).id == "critic"


async def test_a_cancelled_switch_changes_nothing_and_does_not_block_the_next(folder):
    entered = asyncio.Event()

    @hook("personality_switched")
    async def slow(ctx, payload):
        entered.set()
        if payload.to == "coder":
            await asyncio.Event().wait()

    roster = crew(folder, hooks=[slow])
    session = Session("s")
    task = asyncio.create_task(roster.switch(session, "coder"))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert session.personality_id == ""
    assert (await roster.switch(session, "critic")).id == "critic"


async def test_concurrent_sessions_share_nothing(folder):
    for i in range(8):
        put(folder, f"p{i}.toml", f'instructions = "p{i}"\ntools = ["{"look" if i % 2 else "wipe"}"]')
    both = asyncio.Barrier(8)

    @hook("before_llm")
    async def meet(ctx, request):
        if len(request.messages) == 2:
            await both.wait()
        assert who(request) == ctx.session.personality_id == ctx.agent_name

    def turn(request):
        done = [message for message in request.messages if message.role == "tool"]
        return who(request) if done else [call(request.tools[0].name)]

    roster = crew(folder, [turn], hooks=[meet])
    sessions = [Session(f"s{i}") for i in range(8)]
    await asyncio.gather(*(roster.switch(s, f"p{i}") for i, s in enumerate(sessions)))
    results = await asyncio.gather(*(roster.arun("x", session=s) for s in sessions))
    assert [result.reply for result in results] == [f"p{i}" for i in range(8)]
    assert [result.tool_names for result in results] == [("look",) if i % 2 else ("wipe",) for i in range(8)]
    assert [len(session.messages) for session in sessions] == [4] * 8


async def test_the_command_lists_and_switches(folder):
    command = crew(folder, first="coder").commands["personality"]
    session = Session()
    assert await command.call(session, "") == (
        "coder: Writes code (active)\ncritic: Finds faults\n/personality NAME switches to another."
    )
    assert await command.call(session, " critic ") == "Switched to critic."
    assert session.personality_id == "critic"
    assert await command.call(session, "") == (
        "coder: Writes code\ncritic: Finds faults (active)\n"
        "/personality NAME switches to another. /personality default switches back to coder."
    )
    assert "/personality NAME" in command.help
    result = await command.call(session, "codr")
    assert result.startswith("There is no personality 'codr'. Did you mean 'coder'?")
    without = await crew(folder).commands["personality"].call(Session(), "")
    assert without.startswith("default: the agent of the settings (active)\ncoder: Writes code\n")
    put(folder, "default.toml", 'instructions = "default"')
    its_own = await crew(folder, first="coder").commands["personality"].call(Session(personality_id="critic"), "")
    assert "\ndefault\n" in its_own
    assert "goes back" not in its_own


def test_hooks_of_the_roster_are_those_of_the_base(folder):
    registry = HookRegistry()
    roster = crew(folder, hooks=registry)
    assert roster.hooks is registry


def test_a_wrong_type_of_session_is_rejected(folder):
    with pytest.raises(TypeError, match="session= takes a Session, not str"):
        crew(folder).start("x", session="s")


async def test_changes_to_the_base_agent_in_a_session_follow_the_base_agent(folder):
    @hook("personality_switched")
    def brief(ctx, switched):
        return {"personality": {"max_steps": 3}}

    roster = crew(folder, hooks=[brief])
    session = Session("s", personality_id=next(iter(roster)))
    await roster.switch(session, "default")
    assert roster.agent_for(session).limits.steps == 3
    roster.base.limits = Limits(steps=2)
    assert roster.agent_for(session).limits.steps == 2
