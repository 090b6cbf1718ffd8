"""The files that ``hookline new plugin`` writes; ``ID`` stands for the plugin's id."""

from __future__ import annotations

import re
from pathlib import Path

from .._kernel.errors import HooklineError

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
