"""``hookline new``: write an agent, hook, tool, plugin or personality to start from."""

from __future__ import annotations

import ast
import builtins
import keyword
import re
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from .._kernel.errors import HooklineError
from .help import Command
from .new_agent import write_agent

EPILOG = """
Examples:
  hookline new agent desk
  hookline new hook keep_files
  hookline new tool word_count --dir tools
  hookline new plugin word-watch
  hookline new personality critic
"""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("new", cls=Command, epilog=EPILOG)(new)


def new(
    kind: Annotated[
        Literal["agent", "hook", "tool", "plugin", "personality"],
        typer.Argument(metavar="agent|hook|tool|plugin|personality", help="What to write."),
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name: a Python identifier, or an id.")],
    folder: Annotated[
        str,
        typer.Option(
            "--dir",
            metavar="DIR",
            show_default=False,
            help="Folder to write to. [default: NAME/, plugins/ or personalities/ for these kinds, else this folder]",
        ),
    ] = "",
) -> int:
    """Write an agent, hook, tool, plugin or personality to start from.

    An agent is a folder with typed deps, tools, a guard, tests and settings. A hook or tool is NAME.py with a passing
    test in test_NAME.py; a plugin is a folder; a personality is NAME.toml. Without settings for this folder,
    hookline.toml is written too, and turns recording on.
    """
    code = _write_kind(kind, name, folder)
    if kind != "agent":
        _write_settings()
    return code


def _write_settings() -> None:
    """Write a file of settings that turns recording on, unless there are settings already."""
    from ..config.sources import FILE, find_file
    from .trust import trust_new

    if find_file(Path.cwd())[0] is not None:
        return
    path = Path(FILE)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(SETTINGS)
    except OSError:
        return  # the file is only an offer, or another user has written one that is ignored
    trust_new([path.absolute()])
    typer.echo(f"\nwrote {FILE}: it turns recording on (record = true). After a run: hookline record ls")


def _write_kind(kind: str, name: str, folder: str) -> int:
    from ..config.trust import plugin_files
    from .trust import trust_new

    if kind == "agent":
        return write_agent(checked_id(name), Path(folder or name))
    if kind == "personality":
        return write_personality(name, Path(folder or "personalities"))
    if kind == "plugin":
        made = write_plugin(name, Path(folder or "plugins"))
        trust_new(plugin_files(made))
        typer.echo(f"wrote {made}/: plugin.toml, a guard, a tool, a test and a README\n")
        typer.echo(f"check it:   hookline plugins check {made}\ntest it:    pytest {made}")
        typer.echo(f"enable it:  hookline plugins enable {name if not folder else made}")
        return 0
    if not name.isidentifier() or keyword.iskeyword(name):
        raise HooklineError(f"{name!r} is not a Python identifier; try {suggest_name(name)!r}")
    taken = name_conflict(name)
    if taken:
        raise HooklineError(f"{name!r} is {taken}; try {f'my_{name}'.lower()!r}")
    code, test = TEMPLATES[kind]
    place = Path(folder or ".")
    files = {place / f"{name}.py": code, place / f"test_{name}.py": test}
    for path in files:
        if path.exists():
            raise HooklineError(f"{path} already exists; nothing was written")
    try:
        place.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            with path.open("x", encoding="utf-8") as file:
                file.write(text.replace("NAME", name))
    except OSError as error:
        raise HooklineError(f"cannot write to {place}: {error}") from error
    first, second = files
    trust_new([first])
    typer.echo(f"wrote {first}\nwrote {second}\n\ntest it:     pytest {second}")
    if kind == "hook":
        typer.echo(f'inspect it:  hookline hooks {first}\nuse it:      hookline run "TASK" --hooks {first}')
    else:
        typer.echo(f'try it:      hookline run "Count the words of: one two three" --tools {first}')
    return 0


def write_personality(name: str, folder: Path) -> int:
    """Write the personality file NAME.toml."""
    from .trust import trust_new

    checked_id(name)
    path = folder / f"{name}.toml"
    if path.exists() or (folder / name).exists():
        raise HooklineError(f"{path if path.exists() else folder / name} already exists; nothing was written")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(PERSONALITY.replace("NAME", name))
    except OSError as error:
        raise HooklineError(f"cannot write to {folder}: {error}") from error
    trust_new([path])
    typer.echo(f"wrote {path}\n\ntry it:   hookline chat --personalities {folder} --personality {name}")
    typer.echo(f'use it:   personalities = "{folder.as_posix()}" in hookline.toml')
    return 0


def checked_id(name: str) -> str:
    """Check a name that is also that of a file or folder."""
    from ..teams.personality import is_id

    if not is_id(name):
        raise HooklineError(f"{name!r} is not an id: use letters, digits, - and _; try {suggest_name(name)!r}")
    return name


def name_conflict(name: str) -> str:
    """Describe the conflict of a name, such as a module that the file would hide; empty without a conflict."""
    from importlib.metadata import packages_distributions

    from .._base.lazy import exports

    module = "the name of a module that others import"
    if name == "hookline" or name in sys.stdlib_module_names:
        return module
    if hasattr(builtins, name):
        return "a built-in name of Python"
    if name in exports("hookline"):
        return "a name of hookline"
    if any(name in _names_in(text) for texts in TEMPLATES.values() for text in texts):
        return "a name that the generated files use"
    if name.startswith("test_"):
        return "a name that pytest takes for a test"
    return module if name in packages_distributions() else ""  # last, because it reads all installed packages


def _names_in(code: str) -> set[str]:
    nodes = [vars(node) for node in ast.walk(ast.parse(code))]
    return {str(node[field]) for node in nodes for field in ("id", "name", "arg") if node.get(field)}


def suggest_name(name: str) -> str:
    """Return a similar name that is an identifier."""
    made = re.sub(r"\W+", "_", name).strip("_").lower() or "my_hook"
    made = f"_{made}" if made[0].isdigit() else made
    return f"{made}_" if keyword.iskeyword(made) else made


SETTINGS = """# Settings of hookline for this folder. hookline config shows all of them.

# Keep what hooks see and decide: "hookline record ls" lists the runs, "hookline explain last" shows why a hook
# intervened, and "hookline backtest RULES.py" tells what changed rules would have done. Secrets are replaced before
# anything is written.
record = true
"""

HOOK = '''"""A guard that checks tool calls before they run."""

from os.path import normpath

from hookline import BEFORE_TOOL, AgentContext, HookResult, ToolCallRequest, guard


@guard(BEFORE_TOOL, tools="delete_*")
def NAME(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
    """Block calls that delete something outside the folder tmp/."""
    path = str(request.arguments.get("path", ""))
    if not normpath(path).startswith("tmp/"):  # tmp/../thesis.doc is not in tmp/
        return HookResult.block(f"Only files in tmp/ may be deleted, not {path!r}.", reason="outside tmp/")
    return None  # allow the call
'''

HOOK_TEST = '''from NAME import NAME

from hookline import BEFORE_TOOL, call, reply, tool
from hookline.testing import fire_hook, scripted_agent


def test_files_in_tmp_may_be_deleted() -> None:
    verdict = fire_hook(NAME, BEFORE_TOOL, name="delete_file", arguments={"path": "tmp/a.txt"})
    assert verdict.action == "cont"


def test_other_files_are_not_deleted() -> None:
    deleted: list[str] = []

    @tool(effects=["delete"])
    def delete_file(path: str) -> str:
        """Delete one file."""
        deleted.append(path)
        return "deleted"

    turns = [call("delete_file", path="thesis.doc"), call("delete_file", path="tmp/../thesis.doc"), reply("I may not.")]
    result = scripted_agent(turns, tools=[delete_file], hooks=[NAME]).run("clean up")
    assert deleted == []
    assert result.reply == "I may not."
'''

TOOL = '''"""A tool: the model sees its name, its parameters and its docstring."""

from hookline import tool


@tool(effects=[])  # a pure computation; otherwise any of read, write, delete, execute, network
def NAME(text: str, longest: bool = False) -> str:
    """Count the words of a text.

    Args:
        text: the text.
        longest: name the longest word too.
    """
    words = text.split()
    answer = f"{len(words)} words"
    if longest and words:
        answer += f", the longest is {max(words, key=len)!r}"
    return answer
'''

TOOL_TEST = """from NAME import NAME

from hookline import call, reply
from hookline.testing import scripted_agent


def test_it_counts_words() -> None:
    assert NAME("one two three") == "3 words"


def test_a_model_can_call_it() -> None:
    turns = [call("NAME", text="a little test", longest=True), reply("Done.")]
    result = scripted_agent(turns, tools=[NAME]).run("count")
    assert result.messages[2].content == "3 words, the longest is 'little'"
"""

PERSONALITY = """# A personality. Settings that are missing here come from hookline.toml; its hooks always run.
description = "Finds weak points of a text, and says so kindly"
instructions = \"\"\"
You are NAME. Read the text you are given, name its three weakest points, and say how to fix each.
\"\"\"

# model = "openai:gpt-5-mini"         # another model, and its settings:
# params = { temperature = 0 }
# tools = ["read_*", "tools.py"]      # only these tools; "*" for all, FILE.py for more
# plugins = []                        # only these plugins
# guards = [{ use = "RateLimitHook", args = { per_minute = 10 } }]    # additional hooks
# delegates = ["coder"]               # personalities it may delegate and hand over to
# max_steps = 5
"""

TEMPLATES = {"hook": (HOOK, HOOK_TEST), "tool": (TOOL, TOOL_TEST)}


PLUGIN_MANIFEST = """id = "ID"
version = "0.1.0"
api = "API"
description = "Counts words, and blocks tool calls that contain certain words."
hooks = ["rules.py:keep_out"]
tools = ["tools.py:count_words"]
permissions = []  # a guard and this tool need none

[settings.words]
type = "array"
default = ["password"]
description = "words that no tool call may contain"
"""

PLUGIN_RULES = '''"""A guard that checks tool calls before they run."""

from collections.abc import Mapping
from typing import Any

from hookline import BEFORE_TOOL, AgentContext, Hook, HookResult, ToolCallRequest, guard


def keep_out(settings: Mapping[str, Any]) -> Hook:
    """Make the guard with the plugin's settings."""
    words = [word.lower() for word in settings["words"]]

    @guard(BEFORE_TOOL, name="keep_out")
    def check(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
        """Block calls whose arguments contain one of the words."""
        text = str(request.arguments).lower()
        found = [word for word in words if word in text]
        return HookResult.block(f"{found[0]!r} is not allowed here.", reason="forbidden word") if found else None

    return check
'''

PLUGIN_TOOLS = '''"""A tool: the model sees its name, its parameters and its docstring."""

from hookline import tool


@tool(effects=[])  # a pure computation; otherwise any of read, write, delete, execute, network
def count_words(text: str) -> str:
    """Count the words of a text.

    Args:
        text: the text.
    """
    return f"{len(text.split())} words"
'''

PLUGIN_TEST = """from pathlib import Path

from hookline import call, reply
from hookline.plugins import Plugin, PluginManager, load_plugin
from hookline.testing import scripted_agent

HERE = Path(__file__).parent


def outcomes(plugin: Plugin, text: str) -> tuple[str, ...]:
    agent = scripted_agent([call("count_words", text=text), reply("done")], plugins=[plugin])
    return agent.run("count").steps[0].outcomes


def test_the_plugin_is_valid() -> None:
    assert PluginManager(installed=False).check(str(HERE)) == []


def test_a_model_can_count_words() -> None:
    assert outcomes(load_plugin(HERE), "one two") == ("ok",)


def test_calls_with_forbidden_words_are_blocked() -> None:
    assert outcomes(load_plugin(HERE), "my password is x") == ("blocked",)
    assert outcomes(load_plugin(HERE, settings={"words": ["two"]}), "one two") == ("blocked",)


def test_unplugging_removes_its_hooks_and_tools() -> None:
    agent = scripted_agent([reply("hi")], plugins=[load_plugin(HERE)])
    agent.unplug("ID")
    assert len(agent.hooks) == len(agent.tools) == 0
"""

PLUGIN_README = """# ID

A plugin for Hookline. `plugin.toml` lists its hooks, tools and permissions.

    hookline plugins check PLACE
    hookline plugins enable ID
    pytest PLACE

Settings, in `hookline.toml`:

    [plugin_settings.ID]
    words = ["password", "secret"]

Files of a plugin import one another with a dot: `from .rules import keep_out`.
"""


def write_plugin(name: str, folder: Path) -> Path:
    """Write a working plugin with a test into a new folder, and return the folder.

    Raises:
        HooklineError: the name is invalid, or the folder exists or cannot be written.
    """
    from ..plugins.manifest import HOOKLINE_API

    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,63}", name):
        made = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_0123456789") or "my-plugin"
        raise HooklineError(
            f"{name!r} is not a plugin id: use lower-case letters, digits, '-' and '_', starting with a letter; "
            f"try {made!r}"
        )
    place = folder / name
    if place.exists():
        raise HooklineError(f"{place} already exists; nothing was written")
    ident = name.replace("-", "_")
    files = {
        "plugin.toml": PLUGIN_MANIFEST,
        "rules.py": PLUGIN_RULES,
        "tools.py": PLUGIN_TOOLS,
        f"test_{ident}.py": PLUGIN_TEST,
    }
    try:
        place.mkdir(parents=True)
        for file, text in (files | {"README.md": PLUGIN_README}).items():
            made = text.replace("PLACE", str(place)).replace('"API"', f'"{HOOKLINE_API}"')
            (place / file).write_text(re.sub(r"\bID\b", name, made), encoding="utf-8")
    except OSError as error:
        raise HooklineError(f"cannot write to {place}: {error}") from error
    return place
