"""An agent from settings."""

import asyncio
import json
import sys
from pathlib import Path

import msgspec
import pytest

from hookline import RegistrationError, call, observer, reply
from hookline._base.own_files import protection_of
from hookline._toolbox.sandbox import level_state
from hookline.config.errors import ConfigError
from hookline.config.factory import approval_policy, build_agent, build_hooks, build_model, build_tools, make_context
from hookline.config.loading import load_hooks
from hookline.config.settings import DeclaredHook, Settings
from hookline.config.sources import Flag, load
from hookline.hooks import FallbackModelHook
from hookline.payloads import Usage
from hookline.plugins.errors import LoadError, UntrustedFileError
from hookline.stores import DatabaseSkillStore, Skill, SkillStore
from hookline.tape import Tape
from hookline.testing import scripted_agent
from hookline.tools import ToolRegistry, file_tools, shell_tool


@pytest.fixture
def script(tmp_path):
    def write(*turns):
        (tmp_path / "turns.json").write_text(json.dumps(turns))
        return f"scripted:{tmp_path / 'turns.json'}"

    return write


def test_the_default_tools_and_the_path_guard_are_there(script, tmp_path):
    agent = build_agent(Settings(model=script("hi"), folder=str(tmp_path)))
    assert {"read_file", "calculate", "now"} <= {tool.name for tool in agent.tools}
    assert "write_file" not in agent.tools
    assert [type(hook).__name__ for hook in agent.hooks] == ["PathGuard"]
    assert "write_file" in build_agent(Settings(model=script("hi"), folder=str(tmp_path), write=True)).tools


def test_the_shell_comes_with_its_guard(script, tmp_path):
    agent = build_agent(Settings(model=script("hi"), folder=str(tmp_path), shell=True, default_tools=False))
    assert [tool.name for tool in agent.tools] == ["shell"]
    assert [type(hook).__name__ for hook in agent.hooks] == ["PathGuard", "TerminalGuard"]
    assert "shell" not in build_agent(Settings(model=script("hi"), folder=str(tmp_path))).tools


def test_strict_is_a_hook_of_the_settings_and_its_allowed_tools_are_arguments(script, tmp_path):
    settings = Settings(model=script("hi"), folder=str(tmp_path), shell=True, hooks=("Strict",))
    with pytest.raises(RegistrationError, match="no guard names 'calculate', 'now'[.]"):
        build_agent(settings)
    strict = DeclaredHook("Strict", {"allow": ["calculate", "now"]})
    assert "shell" in build_agent(msgspec.structs.replace(settings, hooks=(strict,))).tools


@pytest.mark.parametrize(("level", "sandbox"), [("off", ""), ("bubblewrap", "bubblewrap"), ("landlock", "landlock")])
def test_the_sandbox_of_the_shell_is_a_setting(script, tmp_path, level, sandbox):
    if level != "off" and (problem := level_state(level).problem):
        pytest.skip(problem)
    settings = Settings(model=script("hi"), folder=str(tmp_path), shell=True, sandbox={"level": level})
    assert build_agent(settings).tools.get("shell").sandbox == sandbox


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"level": "none"}, "expected one of auto, bubblewrap, landlock, off"),
        ({"levle": "off"}, "unknown option 'levle'. Did you mean 'level'"),
        ({"memory": "4G"}, "memory"),
        ({"writable": ["/no/such/folder"]}, "does not exist"),
    ],
)
def test_a_wrong_setting_of_the_sandbox_is_an_error(script, tmp_path, table, says):
    settings = Settings(model=script("hi"), folder=str(tmp_path), shell=True, sandbox=table)
    with pytest.raises((ConfigError, RegistrationError), match=says):
        build_agent(settings)


def test_paths_of_the_sandbox_are_relative_to_the_file(tmp_path):
    (tmp_path / "hookline.toml").write_text('[sandbox]\nwritable = ["build"]\nlevel = "auto"\n')
    sandbox = load(file=tmp_path / "hookline.toml", env={}).settings.sandbox
    assert sandbox == {"writable": [str(tmp_path / "build")], "level": "auto"}


@pytest.fixture
def project(tmp_path):
    """A project whose configuration is in the folder in which the shell runs."""
    if problem := level_state("bubblewrap").problem:
        pytest.skip(problem)
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "mine.py").write_text("hooks = []\n")
    (tmp_path / "hookline.toml").write_text('folder = "."\nshell = true\nhooks = ["rules/mine.py:hooks"]\n')
    return tmp_path


@pytest.mark.parametrize("write", [True, False])
def test_the_shell_can_write_what_the_settings_allow_but_not_the_settings(project, write):
    config = load([Flag("write", "--write", write)], folder=project, env={})
    before = (project / "hookline.toml").read_text()
    (tool,) = [tool for tool in build_tools(config.settings, config.home) if getattr(tool, "name", "") == "shell"]
    load_hooks(config.settings.hooks, config.home)
    asyncio.run(tool("echo x >> hookline.toml; echo x >> rules/mine.py; echo x > new"))
    assert (project / "hookline.toml").read_text() == before
    assert (project / "rules" / "mine.py").read_text() == "hooks = []\n"
    assert (project / "new").exists() == write


def test_the_profile_of_the_shell_is_a_setting(script, tmp_path):
    settings = Settings(model=script("hi"), folder=str(tmp_path), shell=True, shell_profile="developer")
    guards = [hook for hook in build_agent(settings).hooks if type(hook).__name__ == "TerminalGuard"]
    assert [guard.profile for guard in guards] == ["developer"]
    with pytest.raises(ConfigError, match="shell_profile: developer needs a sandbox"):
        build_agent(msgspec.structs.replace(settings, sandbox={"level": "off"}))


@pytest.mark.parametrize(
    "path",
    [
        "mytools.py",
        "mytools/__init__.py",
        "other.py",
        "server.py",
        "serving/main.py",
        "hookline.toml",
        "hookline/trust.json",
    ],
)
@pytest.mark.parametrize("name", ["write_file", "shell"])
def test_code_that_the_settings_run_is_not_the_agents_to_change(script, tmp_path, monkeypatch, path, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    (tmp_path / "hookline").mkdir()
    (tmp_path / "server.py").write_text("")
    settings = Settings(
        model=script("hi"),
        folder=str(tmp_path),
        write=True,
        shell=True,
        tools=("mytools:look", "other.py:look"),
        mcp=("python server.py", "python -m serving.main"),
    )
    registry, _ = build_hooks(settings, tmp_path)

    def outcome(path):
        made = call(name, path=path, content="x") if name == "write_file" else call(name, command=f"echo x > {path}")
        tools = [shell_tool(tmp_path), *file_tools(tmp_path, write=True)]
        return scripted_agent([[made], reply("x")], tools=tools, hooks=registry).run("x").steps[0].outcomes

    assert outcome(path) == ("blocked",)
    assert outcome("notes.py") == ("ok",)


STORES = {
    "runs": "runs.db", "approval_file": "approvals.db", "sessions": "kept", "audit": "log/audit.jsonl",
    "spending_file": "spent.db",
    "tapes": "tapes", "records": "records", "tickets": "board.db",
}  # fmt: skip


@pytest.mark.parametrize("name", ["write_file", "shell"])
def test_what_the_settings_name_is_not_the_agents_to_change_even_before_it_is_opened(script, tmp_path, name):
    (tmp_path / "rules.py").write_text(
        "import near\nfrom hookline import observer\n\n\n@observer('on_run_end')\n"
        "def look(ctx, result):\n    import late\n"
    )
    for module in ("near.py", "late.py"):
        (tmp_path / module).write_text("")
    places = {key: str(tmp_path / place) for key, place in STORES.items()}
    settings = Settings(model=script("hi"), folder=str(tmp_path), write=True, hooks=(f"{tmp_path}/rules.py",), **places)
    registry, _ = build_hooks(msgspec.structs.replace(settings, shell=True), tmp_path)

    def outcomes(*paths):
        made = [call(name, path=path, content="x", command=f"echo x > {path}") for path in paths]
        keep = {"write_file": ("path", "content"), "shell": ("command",)}[name]
        made = [each.replace(arguments={key: each.arguments[key] for key in keep}) for each in made]
        tools = [shell_tool(tmp_path, sandbox="off"), *file_tools(tmp_path, write=True, hide=())]
        return set(scripted_agent([made, reply("x")], tools=tools, hooks=registry).run("x").steps[0].outcomes)

    stores = [
        "runs.db",
        "runs.db-wal",
        "approvals.db",
        "spent.db",
        "kept/ann.json",
        "log/audit.jsonl",
        "tapes/x",
        "records/x",
    ]
    assert outcomes(*stores, "board.db", "rules.py", "near.py", "late.py", "pyproject.toml") == {"blocked"}
    assert outcomes("notes.py", "shop.db", "keep.txt") == {"ok"}


@pytest.mark.parametrize(
    ("declared", "write", "outcome"),
    [
        ("", False, "blocked"),
        ("", True, "ok"),
        ('(effects=["read"])', False, "ok"),
        ('(effects=["write"])', False, "blocked"),
    ],
)
def test_a_tool_of_a_file_runs_without_write_only_if_it_declares_that_it_reads(tmp_path, declared, write, outcome):
    canary = tmp_path / "canary"
    canary.write_text("alive")
    (tmp_path / "mine.py").write_text(
        "from pathlib import Path\n"
        "from hookline import tool\n"
        f"@tool{declared}\n"
        "def touch(where: Path) -> str:\n"
        "    'Change a file.'\n"
        "    return str(where.write_text('changed'))\n"
    )
    (tmp_path / "turns.json").write_text(json.dumps([{"tool": "touch", "arguments": {"where": str(canary)}}, "done"]))
    settings = Settings(
        model=f"scripted:{tmp_path / 'turns.json'}",
        folder=str(tmp_path),
        write=write,
        tools=(str(tmp_path / "mine.py"),),
    )
    assert build_agent(settings, home=tmp_path).run("x").steps[0].outcomes == (outcome,)
    assert canary.read_text() == ("changed" if outcome == "ok" else "alive")


@pytest.mark.slow
def test_only_a_trusted_server_is_believed_about_its_tools(script, tmp_path):
    server = Path(__file__).parents[1] / "tools" / "mcp_server.py"
    target = f"{sys.executable} {server} {tmp_path / 'notes'}"
    for names, effects in ((["mcp"], None), (["trusted_mcp"], {"read"}), (["mcp", "trusted_mcp"], {"read"})):
        servers = dict.fromkeys(names, (target,))
        settings = Settings(model=script("hi"), folder=str(tmp_path), default_tools=False, **servers)
        (tools,) = build_tools(settings, tmp_path)
        with tools:
            assert ToolRegistry([tools]).get("peek").effects == effects
        agent = build_agent(settings, home=tmp_path)
        assert protection_of(str(server)) is not None  # the agent must not change its code
        del agent


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_a_server_whose_script_others_could_have_written_is_not_started(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "server.py").write_text("")
    (tmp_path / "server.py").chmod(0o666)
    with pytest.raises(UntrustedFileError, match=r"server\.py is not used: every user may write to it"):
        build_agent(Settings(model=script("hi"), folder=str(tmp_path), mcp=("python server.py",)))


def test_a_guard_declared_in_a_file_blocks_without_any_python_of_the_users_own(script, tmp_path):
    (tmp_path / "refusing.py").write_text(
        "from hookline import HookResult\n"
        "class Refuse:\n"
        "    points = ('before_tool',)\n"
        "    def __init__(self, message): self.message = message\n"
        "    def __call__(self, point, ctx, request): return HookResult.block(self.message)\n"
    )
    (tmp_path / "hookline.toml").write_text(
        f'model = "{script({"tool": "calculate", "arguments": {"expression": "1+1"}}, "done")}"\n'
        'hooks = [{ use = "refusing:Refuse", args = { message = "Not today." }, tools = "calc*" }]\n'
    )
    config = load(folder=tmp_path, env={})
    result = build_agent(config.settings, home=config.home).run("add", ctx=make_context(config.settings))
    assert result.messages[2].content == "Not today."


def test_a_hook_without_source_is_accepted(script, tmp_path):
    (tmp_path / "rules.py").write_text(
        "Made = type('Made', (), {'points': ('before_tool',), '__call__': lambda self, point, ctx, request: None})\n"
        "Made.__module__ = 'nowhere'\n"
    )
    settings = Settings(model=script("hi"), folder=str(tmp_path), hooks=(f"{tmp_path / 'rules.py'}:Made",))
    agent = build_agent(settings)
    assert [type(hook).__name__ for hook in agent.hooks] == ["PathGuard", "Made"]


def test_the_limits_apply_to_each_run_separately(script):
    turn = {"tool": "now", "arguments": {}}
    settings = Settings(model=script(turn, turn, turn, turn), max_tool_calls=1, max_steps=3)
    agent = build_agent(settings)
    for _ in range(2):
        result = agent.run("time", ctx=make_context(settings))
        assert (result.status, result.stop.kind, result.tool_calls) == ("stopped", "tool_calls_limit", 1)


def test_the_model_is_warned_before_a_configured_limit(script):
    turn = {"tool": "now", "arguments": {}}
    settings = Settings(model=script(turn, turn, turn, turn, "done"), max_tool_calls=5, max_steps=5)
    told = []

    @observer("before_llm")
    def see(ctx, request):
        told.append(request.messages[-1].content if request.messages[-1].role == "user" else None)

    assert build_agent(settings, hooks=[see]).run("time", ctx=make_context(settings)).status == "completed"
    note = "You have used 4 of 5 steps.\nYou have used 4 of 5 tool calls. Wrap up now:"
    assert told[:4] == ["time", None, None, None]
    assert told[4].startswith(note)


@pytest.mark.parametrize(
    ("toml", "steps"),
    [
        ('hooks = [{ use = "limits_plugin", args = { max_steps = 22 } }]', 22),
        ('max_steps = 20\nhooks = [{ use = "limits_plugin", args = { max_steps = 22 } }]', 20),
        ('max_steps = 3\nhooks = [{ use = "limits_plugin", args = { max_steps = 2 } }]', 2),
        ("", 20),
        ("max_steps = 21", 21),
        ('max_steps = "none"', None),
        ("max_steps = inf", None),
        ('max_steps = "none"\nhooks = [{ use = "limits_plugin", args = { max_steps = 2 } }]', 2),
    ],
)
def test_the_step_limit_of_guards_holds_unless_a_stricter_one_is_set(script, tmp_path, toml, steps):
    turns = [*[{"tool": "now", "arguments": {}}] * 30, "done"]
    (tmp_path / "hookline.toml").write_text(f'model = "{script(*turns)}"\n{toml}\n')
    config = load(folder=tmp_path, env={})
    result = build_agent(config.settings, home=config.home).run("time", ctx=make_context(config.settings))
    found = ("steps_limit", steps) if steps is not None else ("completed", 31)
    assert (result.stop.kind, len(result.steps)) == found


def test_a_hook_that_cannot_be_loaded_is_reported_with_the_configuration_file(script, tmp_path):
    (tmp_path / "hookline.toml").write_text(f'model = "{script("hi")}"\nhooks = ["EgressGuard"]\n')
    config = load(folder=tmp_path, env={})
    with pytest.raises(LoadError, match=r"hookline\.toml: hooks: EgressGuard needs hosts"):
        build_agent(config.settings, home=config.home, file=config.hooks_file)
    several = load([Flag("hooks", "--hooks", ["TimingHook"])], folder=tmp_path, env={})
    assert several.hooks_file is None


def test_the_model_gets_the_params_and_the_instructions(script):
    settings = Settings(model=script("hi"), params={"temperature": 0}, instructions="Be brief.", default_tools=False)
    agent = build_agent(settings)
    agent.run("hello")
    (request,) = agent.model.requests
    assert request.params == {"temperature": 0}
    assert request.messages[0].content == "Be brief."
    assert request.tools == ()


def test_a_missing_folder_is_an_error(script):
    with pytest.raises(ConfigError, match="no such folder"):
        build_agent(Settings(model=script("hi"), folder="/no/such/folder"))


def test_hosts_bring_a_fetch_tool_that_reaches_no_others(script, tmp_path):
    turn = {"tool": "fetch", "arguments": {"url": "https://evil.com"}}
    settings = Settings(model=script(turn, "done"), folder=str(tmp_path), hosts=("good.com",))
    result = build_agent(settings).run("go")
    assert "evil.com is not one of the allowed hosts (good.com)" in result.messages[2].content
    assert "fetch" not in build_agent(Settings(model=script("hi"), folder=str(tmp_path))).tools
    with pytest.raises(RegistrationError, match="hosts"):
        build_agent(Settings(model=script("hi"), folder=str(tmp_path), hosts=("not a host",)))


def test_tools_cannot_access_secrets_or_code(script, tmp_path):
    (tmp_path / ".env").write_text("KEY=abc")
    turns = [
        {"tool": "read_file", "arguments": {"path": ".env"}},
        {"tool": "find_text", "arguments": {"text": "abc"}},
        {"tool": "write_file", "arguments": {"path": ".git/hooks/pre-commit", "content": "x"}},
        "done",
    ]
    agent = build_agent(Settings(model=script(*turns), folder=str(tmp_path), write=True))
    messages = agent.run("go").messages
    assert not any("KEY=" in message.content for message in messages)
    assert not (tmp_path / ".git").exists()


def test_skills_bring_their_list_their_tool_and_a_guard_around_their_folder(script, tmp_path):
    store = SkillStore(tmp_path / "skills")
    store.propose(Skill("tidy-notes", "Tidy notes up.", "1. List them."))
    path = {"path": "skills/evil/SKILL.md", "content": "Obey."}
    hidden = {"path": "skills/.proposed/tidy-notes.md", "content": "Obey."}
    turns = [[{"tool": "write_file", "arguments": arguments} for arguments in (path, hidden)], "ok"]
    settings = Settings(
        model=script(*turns),
        folder=str(tmp_path),
        write=True,
        skills=str(tmp_path / "skills"),
        hooks=("SkillEvolverHook",),
    )
    agent = build_agent(settings)
    assert "read_skill" in agent.tools
    hooks = {type(hook).__name__: hook for hook in agent.hooks}
    assert hooks["SkillEvolverHook"].store.folder == hooks["SkillsHook"].store.folder == store.folder
    result = agent.run("x")
    assert [step.outcomes for step in result.steps][0] == ("blocked", "blocked")
    assert store.list() == []
    assert "Obey" not in store.raw(store.find("tidy-notes"))
    assert "read_skill" not in build_agent(Settings(model=script("hi"), folder=str(tmp_path))).tools


def test_skills_in_a_database_are_used_and_are_not_the_agents_to_write(script, tmp_path):
    store = DatabaseSkillStore(tmp_path / "skills.db")
    store.propose(Skill("tidy-notes", "Tidy notes up.", "1. List them."))
    store.accept("tidy-notes")
    turns = [
        [
            {"tool": "write_file", "arguments": {"path": name, "content": "x"}}
            for name in ("skills.db", "skills.db-wal")
        ],
        [{"tool": "read_skill", "arguments": {"name": "tidy-notes"}}],
        "ok",
    ]
    settings = Settings(
        model=script(*turns),
        folder=str(tmp_path),
        write=True,
        skills=str(tmp_path / "skills.db"),
        hooks=("SkillEvolverHook",),
    )
    agent = build_agent(settings)
    hooks = {type(hook).__name__: hook for hook in agent.hooks}
    assert hooks["SkillEvolverHook"].store.place == hooks["SkillsHook"].store.place == store.place
    result = agent.run("x")
    assert [step.outcomes for step in result.steps][:2] == [("blocked", "blocked"), ("ok",)]
    assert "1. List them." in result.messages[-2].content
    store.close()


def test_a_skill_evolver_may_have_its_own_folder(script, tmp_path):
    (tmp_path / "skills").mkdir()
    declared = DeclaredHook("SkillEvolverHook", {"folder": str(tmp_path / "mine")})
    settings = Settings(model=script("hi"), folder=str(tmp_path), skills=str(tmp_path / "skills"), hooks=(declared,))
    hooks = {type(hook).__name__: hook for hook in build_agent(settings).hooks}
    assert hooks["SkillEvolverHook"].store.folder == tmp_path / "mine"


def test_the_skills_folder_must_exist_unless_a_hook_creates_it(script, tmp_path):
    settings = Settings(model=script("hi"), folder=str(tmp_path), skills=str(tmp_path / "skils"))
    with pytest.raises(ConfigError, match=r"skills: no such folder: '.*skils'. Create it"):
        build_agent(settings)
    build_agent(msgspec.structs.replace(settings, hooks=("SkillEvolverHook",)))
    assert not (tmp_path / "skils").exists()


def test_a_file_is_rejected_as_skills_folder(script, tmp_path):
    (tmp_path / "skills").write_text("x")
    with pytest.raises(ConfigError, match="is a file, not a folder"):
        build_agent(Settings(model=script("hi"), folder=str(tmp_path), skills=str(tmp_path / "skills")))


def test_a_board_of_tickets_brings_its_tools_and_rules_and_is_not_the_agents_to_write(script, tmp_path):
    path = str(tmp_path / "board.db")
    settings = Settings(model=script("hi"), folder=str(tmp_path), write=True, tickets=path)
    agent = build_agent(settings)
    assert {"ticket_create", "ticket_list", "ticket_start", "ticket_complete"} <= {tool.name for tool in agent.tools}
    assert [type(hook).__name__ for hook in agent.hooks] == ["PathGuard", "TicketRules"]
    for name in ("board.db", "board.db-wal"):
        made = scripted_agent(
            [call("write_file", path=name, content="x"), reply("x")],
            tools=file_tools(tmp_path, write=True),
            hooks=build_hooks(settings, tmp_path)[0],
        )
        assert made.run("x").steps[0].outcomes == ("blocked",)


def test_rules_for_tickets_in_the_settings_stand_in_for_the_usual_ones(script, tmp_path):
    (tmp_path / "hookline.toml").write_text(
        f'model = "{script("hi")}"\ntickets = "board.db"\n'
        'hooks = [{ use = "TicketRules", args = { board = "board.db", may = { create = ["lead"] } } }]\n'
    )
    settings = load(file=str(tmp_path / "hookline.toml")).settings
    registry, _ = build_hooks(settings, tmp_path)
    (made,) = [hook for hook in registry if type(hook).__name__ == "TicketRules"]
    assert (made.board.path, dict(made.may)) == (str(tmp_path / "board.db"), {"create": ("lead",)})


def test_a_folder_of_tapes_is_a_setting_and_not_the_agents_to_change(script, tmp_path, monkeypatch):
    (tmp_path / "hookline.toml").write_text('tapes = "tapes"\n')
    monkeypatch.chdir(tmp_path)
    turns = script({"tool": "write_file", "arguments": {"path": "tapes/x", "content": "forged"}}, "done")
    settings = msgspec.structs.replace(load([]).settings, model=turns, folder=str(tmp_path), write=True, audit=None)
    result = build_agent(settings).run("a task")
    tape = Tape.load(tmp_path / "tapes" / f"{result.ids.run_id}.tape")
    assert (tape.run.task, result.reply) == ("a task", "done")
    assert [step.outcomes for step in result.steps][0] == ("blocked",)
    assert not (tmp_path / "tapes" / "x").exists()


def test_a_file_is_rejected_as_folder_of_tapes(script, tmp_path):
    (tmp_path / "notes.txt").write_text("notes")
    for path in ("monday.tape", str(tmp_path / "notes.txt")):
        with pytest.raises(ConfigError, match="is a file: name a folder"):
            build_hooks(Settings(model=script("hi"), folder=str(tmp_path), tapes=path), tmp_path)


# Prices


def test_a_price_in_the_settings_is_that_of_the_model(tmp_path):
    (tmp_path / "hookline.toml").write_text(
        'model = "vllm:mine"\nprices = { "vllm:mine" = { input = 0.5, output = 1.5 } }\n'
    )
    settings = load(file=tmp_path / "hookline.toml", env={}).settings
    assert build_model(settings).price(Usage(1_000_000, 1_000_000)) == 2.0
    other = msgspec.structs.replace(settings, model="vllm:other")
    assert build_model(other).price(Usage(1, 1)) is None


def test_a_price_in_the_settings_is_that_of_the_fallback_models_too(tmp_path):
    fallback = DeclaredHook("FallbackModelHook", {"model": ["vllm:second", "vllm:third"]})
    prices = {"vllm:second": {"input": 0.5, "output": 1.5}}
    registry, _ = build_hooks(Settings(model="vllm:mine", hooks=(fallback,), prices=prices), tmp_path)
    (hook,) = (each for each in registry if isinstance(each, FallbackModelHook))
    assert [model.price(Usage(1_000_000, 1_000_000)) for model in hook.models] == [2.0, None]
    assert FallbackModelHook("vllm:second").models[0].price(Usage(1, 1)) is None  # only for the hooks of the settings


@pytest.mark.parametrize(
    ("price", "problem"),
    [
        ({"input": 0.5}, "missing required field `output`"),
        ({"input": 0.5, "outptu": 1}, "unknown option 'outptu'. Did you mean 'output'?"),
        ({"input": -1, "output": 1}, "must be USD for a million tokens, 0 or more, not -1"),
        (0.5, "expected a table such as { input = 0.5, output = 1.5 }; got 0.5"),
    ],
)
def test_a_wrong_price_in_the_settings_is_an_error_with_its_model(price, problem):
    with pytest.raises(ConfigError) as raised:
        build_model(Settings(model="vllm:mine", prices={"vllm:mine": price}))
    assert "prices.vllm:mine" in str(raised.value)
    assert problem in str(raised.value)


def test_a_model_that_has_no_price_says_so():
    with pytest.raises(RegistrationError, match="a 'local' model has no option price"):
        build_model(Settings(model="local", prices={"local": {"input": 1, "output": 1}}))


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ({"people": {}}, "approval_policy: people is empty"),
        ({"peeple": {}}, "unknown option 'peeple'"),
        ({"people": {"ann": {"can_approve": [{"toool": "x"}]}}}, "toool"),
        ({"people": {"ann": {"can_approve": [{"tool": "x", "up_to": "much"}]}}}, "up_to|float"),
        ({"people": {"ann": {"by": ["a"]}}}, "can_approve"),
    ],
)
def test_an_approval_policy_that_cannot_work_is_an_error(policy, why):
    with pytest.raises(ConfigError, match=why):
        approval_policy(Settings(approval_policy=policy))


def test_a_policy_is_not_bypassed_by_the_setting_that_approves_everything():
    policy = {"people": {"ann": {"can_approve": [{"tool": "*"}]}}}
    assert approval_policy(Settings(approval_policy=policy)).people["ann"].can_approve[0].tool == "*"
    with pytest.raises(ConfigError, match="approves calls without the people"):
        approval_policy(Settings(approval_policy=policy, approvals="yes"))
