"""``hookline personalities``: show the personalities an agent can take on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from rich.text import Text

from ..config.sources import Configuration
from .errors import BAD_INPUT, set_up_logging
from .help import Command
from .options import AsJson, with_settings
from .output import print_facts, print_parts, print_problems, short_path, write_json

if TYPE_CHECKING:
    from ..teams.personality import Personality
    from ..teams.roster import Roster

EPILOG = """
Examples:
  hookline personalities
  hookline personalities --personalities people --json
  hookline chat --personality critic
"""

HOW_TO_START = """No personalities: the setting personalities is empty. To start:
  hookline new personality critic
and in hookline.toml:
  personalities = "personalities"
  personality = "critic"
"""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    settings = with_settings("personalities", "personality", "model", "plugins", "debug")
    app.command("personalities", cls=Command, epilog=EPILOG)(settings(personalities))


def personalities(config: Configuration, json: AsJson = False) -> int:
    """Show the personalities an agent can take on.

    Lists the model, tools and plugins of each one, and problems in their files.
    """
    import msgspec

    from ..teams.build import build_answerer
    from ..teams.roster import Roster

    settings = config.settings
    set_up_logging(settings.debug)
    if not settings.personalities:
        if json:
            write_json({"personalities": [], "problems": []})
        else:
            typer.echo(HOW_TO_START, nl=False)
        return 0
    roster = build_answerer(msgspec.structs.replace(settings, personality=""), home=config.home, file=config.hooks_file)
    assert isinstance(roster, Roster)
    problems = list(roster.problems.values())
    if settings.personality and settings.personality not in roster:
        problems.append(f"personality: no personality is called {settings.personality!r}")
    if json:
        shown = [_as_json(each, settings.personality) for each in roster.personalities.values()]
        write_json({"personalities": shown, "problems": problems})
    else:
        print_roster(roster, settings.personality, problems)
    return BAD_INPUT if problems else 0


def print_roster(roster: Roster, first: str, problems: list[str]) -> None:
    """Print the personalities, and problems in their files."""
    print_parts(Text(f"{short_path(str(roster.folder))} (in addition to the settings)", style="dim"))
    items = []
    for id, each in roster.personalities.items():
        agent = roster[id]
        tools = [tool.name for tool in agent.tools]
        rows = [("model", agent.model.name), ("tools", ", ".join(tools) or "none"), *_rows(each)]
        items.append((id, each, rows))
    width = max((len(label) for *_, rows in items for label, _ in rows), default=0)
    for id, each, rows in items:
        print_facts(
            " · ".join(filter(None, (f"\n{id}", each.description, "the first" if id == first else ""))),
            rows,
            width=width,
        )
    if not items:
        print_parts(Text("No personalities yet. Create one with: hookline new personality NAME"))
    print_problems(problems)


def _rows(each: Personality) -> list[tuple[str, str]]:
    guards = [guard if isinstance(guard, str) else guard.use for guard in each.guards]
    rows = [("plugins", "all enabled plugins" if each.plugins is None else ", ".join(each.plugins) or "none")]
    rows += [("guards", _short(guards))] if guards else []
    rows += [("delegates", ", ".join(each.delegates))] if each.delegates else []
    return rows


def _short(guards: list[str]) -> str:

    return ", ".join(short_path(guard) for guard in guards)


def _as_json(each: Personality, first: str) -> dict[str, Any]:
    from .._base.frozen import plain
    from ..config.secrets import mask

    return {**mask(plain(each)), "first": each.id == first}
