"""``hookline new``: write a hook, tool, plugin or personality to start from."""

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

EPILOG = """
Examples:
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
        Literal["hook", "tool", "plugin", "personality"],
        typer.Argument(metavar="hook|tool|plugin|personality", help="What to write."),
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name, a Python identifier; a plugin's id.")],
    folder: Annotated[
        str,
        typer.Option(
            "--dir",
            metavar="DIR",
            show_default=False,
            help="Where to write it; a plugin goes to plugins/, a personality to personalities/, if left out.",
        ),
    ] = "",
) -> int:
    """Write a hook, tool, plugin or personality to start from.

    A hook or tool is NAME.py with test_NAME.py, a test that passes; a plugin is a folder of its own; a personality is
    NAME.toml.
    """
    if kind == "personality":
        return new_personality(name, Path(folder or "personalities"))
    if kind == "plugin":
        made = write_plugin(name, Path(folder or "plugins"))
        typer.echo(f"wrote {made}/: plugin.toml, a guard, a tool, a test and a README\n")
        typer.echo(f"look at it:    hookline plugins check {made}\ntest it:       pytest {made}")
        typer.echo(f"switch it on:  hookline plugins enable {name if not folder else made}")
        return 0
    if not name.isidentifier() or keyword.iskeyword(name):
        raise HooklineError(f"{name!r} is no Python identifier; how about {suggested(name)!r}?")
    taken = why_taken(name)
    if taken:
        raise HooklineError(f"{name!r} is {taken}; how about {f'my_{name}'.lower()!r}?")
    code, test = TEMPLATES[kind]
    place = Path(folder or ".")
    files = {place / f"{name}.py": code, place / f"test_{name}.py": test}
    for path in files:
        if path.exists():
            raise HooklineError(f"{path} is already there; nothing was written")
    try:
        place.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            with path.open("x", encoding="utf-8") as file:
                file.write(text.replace("NAME", name))
    except OSError as error:
        raise HooklineError(f"cannot write to {place}: {error}") from error
    first, second = files
    typer.echo(f"wrote {first}\nwrote {second}\n\ntest it:     pytest {second}")
    if kind == "hook":
        typer.echo(f'look at it:  hookline hooks {first}\nuse it:      hookline run "TASK" --hooks {first}')
    else:
        typer.echo(f'try it:      hookline run "Count the words of: one two three" --tools {first}')
    return 0


def new_personality(name: str, folder: Path) -> int:
    """Write NAME.toml into a folder of personalities."""
    from ..teams.personalities import is_id

    if not is_id(name):
        raise HooklineError(f"{name!r} is no id: use letters, digits, - and _; how about {suggested(name)!r}?")
    path = folder / f"{name}.toml"
    if path.exists() or (folder / name).exists():
        raise HooklineError(f"{path if path.exists() else folder / name} is already there; nothing was written")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(PERSONALITY.replace("NAME", name))
    except OSError as error:
        raise HooklineError(f"cannot write to {folder}: {error}") from error
    typer.echo(f"wrote {path}\n\ntry it:   hookline chat --personalities {folder} --personality {name}")
    typer.echo(f'keep it:  personalities = "{folder.as_posix()}" in hookline.toml')
    return 0


def why_taken(name: str) -> str:
    """What else has this name, so that the file or the function would stand in its way; empty if nothing has."""
    from importlib.metadata import packages_distributions

    from .._base.lazy import exports

    module = "the name of a module that others import"
    if name == "hookline" or name in sys.stdlib_module_names:
        return module
    if hasattr(builtins, name):
        return "a name of Python's own"
    if name in exports("hookline"):
        return "a name of hookline's own"
    if any(name in _names_in(text) for texts in TEMPLATES.values() for text in texts):
        return "a name that the files need themselves"
    if name.startswith("test_"):
        return "what pytest takes for a test"
    return module if name in packages_distributions() else ""  # last: it reads about everything that is installed


def _names_in(code: str) -> set[str]:
    nodes = [vars(node) for node in ast.walk(ast.parse(code))]
    return {str(node[field]) for node in nodes for field in ("id", "name", "arg") if node.get(field)}


def suggested(name: str) -> str:
    """The nearest identifier."""
    made = re.sub(r"\W+", "_", name).strip("_").lower() or "my_hook"
    made = f"_{made}" if made[0].isdigit() else made
    return f"{made}_" if keyword.iskeyword(made) else made


HOOK = '''"""A guard: it judges each tool call before it runs."""

from os.path import normpath

from hookline import BEFORE_TOOL, HookResult, guard


@guard(BEFORE_TOOL, tools="delete_*")
def NAME(ctx, request):
    """Block calls that delete something outside the folder tmp/."""
    path = str(request.arguments.get("path", ""))
    if not normpath(path).startswith("tmp/"):  # tmp/../thesis.doc is not in tmp/
        return HookResult.block(f"Only files in tmp/ may be deleted, not {path!r}.", reason="outside tmp/")
    return None  # let it pass
'''

HOOK_TEST = '''from NAME import NAME

from hookline import BEFORE_TOOL, call, reply, tool
from hookline.testing import fire_hook, scripted_agent


def test_files_in_tmp_may_be_deleted():
    verdict = fire_hook(NAME, BEFORE_TOOL, name="delete_file", arguments={"path": "tmp/a.txt"})
    assert verdict.action == "cont"


def test_other_files_stay():
    deleted = []

    @tool
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


@tool
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


def test_it_counts_words():
    assert NAME("one two three") == "3 words"


def test_a_model_can_call_it():
    turns = [call("NAME", text="a little test", longest=True), reply("Done.")]
    result = scripted_agent(turns, tools=[NAME]).run("count")
    assert result.messages[2].content == "3 words, the longest is 'little'"
"""

PERSONALITY = """# Who the agent can be. What is left out here is as the settings say; their hooks always hold.
description = "Finds what is wrong with a text, and says it kindly"
instructions = \"\"\"
You are NAME. Read what you are given, name its three weakest points, and say how to mend each.
\"\"\"

# model = "openai:gpt-5-mini"         # another model, and its settings:
# params = { temperature = 0 }
# tools = ["read_*", "tools.py"]      # only these tools; "*" for all, FILE.py for more
# plugins = []                        # only these plugins
# guards = [{ use = "RateLimitHook", args = { per_minute = 10 } }]    # hooks on top
# delegates = ["coder"]               # whom it may delegate and hand over to
# max_steps = 5
"""

TEMPLATES = {"hook": (HOOK, HOOK_TEST), "tool": (TOOL, TOOL_TEST)}


MANIFEST = """id = "ID"
version = "0.1.0"
api = "API"
description = "Counts words, and keeps certain words out of tool calls."
hooks = ["rules.py:keep_out"]
tools = ["tools.py:count_words"]
permissions = []  # a guard and a harmless tool need none

[settings.words]
type = "array"
default = ["password"]
description = "words that no tool call may hold"
"""

RULES = '''"""A guard: it judges each tool call before it runs."""

from hookline import BEFORE_TOOL, HookResult, guard


def keep_out(settings):
    """Make the guard with the plugin's settings."""
    words = [word.lower() for word in settings["words"]]

    @guard(BEFORE_TOOL, name="keep_out")
    def judge(ctx, request):
        """Block calls whose arguments hold one of the words."""
        text = str(request.arguments).lower()
        found = [word for word in words if word in text]
        return HookResult.block(f"Not with {found[0]!r} in it.", reason="a word that is kept out") if found else None

    return judge
'''

TOOLS = '''"""A tool: the model sees its name, its parameters and its docstring."""

from hookline import tool


@tool
def count_words(text: str) -> str:
    """Count the words of a text.

    Args:
        text: the text.
    """
    return f"{len(text.split())} words"
'''

TEST = """from pathlib import Path

from hookline import call, reply
from hookline.plugins import PluginManager, load_plugin
from hookline.testing import scripted_agent

HERE = Path(__file__).parent


def outcomes(plugin, text):
    agent = scripted_agent([call("count_words", text=text), reply("done")], plugins=[plugin])
    return agent.run("count").steps[0].outcomes


def test_nothing_is_wrong_with_it():
    assert PluginManager(installed=False).check(str(HERE)) == []


def test_a_model_can_count_words():
    assert outcomes(load_plugin(HERE), "one two") == ("ok",)


def test_words_are_kept_out():
    assert outcomes(load_plugin(HERE), "my password is x") == ("blocked",)
    assert outcomes(load_plugin(HERE, settings={"words": ["two"]}), "one two") == ("blocked",)


def test_switched_off_nothing_of_it_is_left():
    agent = scripted_agent([reply("hi")], plugins=[load_plugin(HERE)])
    agent.unplug("ID")
    assert len(agent.hooks) == len(agent.tools) == 0
"""

README = """# ID

A plugin for Hookline. `plugin.toml` says what it brings and what it asks for.

    hookline plugins check PLACE
    hookline plugins enable ID
    pytest PLACE

Settings, in `hookline.toml`:

    [plugin_settings.ID]
    words = ["password", "secret"]

Files of a plugin import one another with a dot: `from .rules import keep_out`.
"""


def write_plugin(name: str, folder: Path) -> Path:
    """Write a plugin that works, with its test, into a new folder; that folder.

    Raises:
        HooklineError: the name or the place cannot be used.
    """
    from ..plugins.plugin import HOOKLINE_API

    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,63}", name):
        made = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_0123456789") or "my-plugin"
        raise HooklineError(
            f"{name!r} is no id of a plugin: small letters, digits, '-' and '_', beginning with a letter; "
            f"how about {made!r}?"
        )
    place = folder / name
    if place.exists():
        raise HooklineError(f"{place} is already there; nothing was written")
    ident = name.replace("-", "_")
    files = {"plugin.toml": MANIFEST, "rules.py": RULES, "tools.py": TOOLS, f"test_{ident}.py": TEST}
    try:
        place.mkdir(parents=True)
        for file, text in (files | {"README.md": README}).items():
            made = text.replace("PLACE", str(place)).replace('"API"', f'"{HOOKLINE_API}"')
            (place / file).write_text(re.sub(r"\bID\b", name, made), encoding="utf-8")
    except OSError as error:
        raise HooklineError(f"cannot write to {place}: {error}") from error
    return place
