"""``hookline personalities``: who the agent can be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from ..config.sources import Configuration
from .errors import BAD_INPUT, quiet_logs
from .help import Command
from .options import takes_settings
from .output import facts, nearby, write_json

if TYPE_CHECKING:
    from ..teams.personalities import Personality
    from ..teams.roster import Roster

EPILOG = """
Examples:
  hookline personalities
  hookline personalities --personalities people --json
  hookline chat --personality critic
"""

BEGIN = """There are no personalities: personalities is not set. To begin:
  hookline new personality critic
and in hookline.toml:
  personalities = "personalities"
  personality = "critic"
"""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    settings = takes_settings("personalities", "personality", "model", "plugins", "debug")
    app.command("personalities", cls=Command, epilog=EPILOG)(settings(personalities))


def personalities(config: Configuration, json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> int:
    """Show the personalities an agent can take on.

    Lists the model, tools and plugins of each one, and problems in their files.
    """
    import msgspec

    from ..teams.build import build_answerer
    from ..teams.roster import Roster

    settings = config.settings
    quiet_logs(settings.debug)
    if not settings.personalities:
        if json:
            write_json({"personalities": [], "problems": []})
        else:
            typer.echo(BEGIN, nl=False)
        return 0
    roster = build_answerer(msgspec.structs.replace(settings, personality=""), home=config.home, file=config.hooks_file)
    assert isinstance(roster, Roster)
    problems = list(roster.problems.values())
    if settings.personality and settings.personality not in roster:
        problems.append(f"personality: there is none called {settings.personality!r} to begin with")
    if json:
        shown = [_as_json(each, settings.personality) for each in roster.personalities.values()]
        write_json({"personalities": shown, "problems": problems})
    else:
        show(roster, settings.personality, problems)
    return BAD_INPUT if problems else 0


def show(roster: Roster, first: str, problems: list[str]) -> None:
    """Print who there is, and what is wrong."""
    from .output import problems as tell
    from .output import show as put

    put(Text(f"{nearby(str(roster.folder))}, on top of the settings", style="dim"))
    items = []
    for id, each in roster.personalities.items():
        agent = roster[id]
        tools = [tool.name for tool in agent.tools]
        rows = [("model", agent.model.name), ("tools", ", ".join(tools) or "none"), *_rows(each)]
        items.append((id, each, rows))
    width = max((len(label) for *_, rows in items for label, _ in rows), default=0)
    for id, each, rows in items:
        facts(
            " · ".join(filter(None, (f"\n{id}", each.description, "the first" if id == first else ""))),
            rows,
            width=width,
        )
    if not items:
        put(Text("There are none yet: hookline new personality NAME"))
    tell(problems)


def _rows(each: Personality) -> list[tuple[str, str]]:
    guards = [guard if isinstance(guard, str) else guard.use for guard in each.guards]
    rows = [("plugins", "all that are on" if each.plugins is None else ", ".join(each.plugins) or "none")]
    rows += [("guards", _short(guards))] if guards else []
    rows += [("delegates", ", ".join(each.delegates))] if each.delegates else []
    return rows


def _short(guards: list[str]) -> str:

    return ", ".join(nearby(guard) for guard in guards)


def _as_json(each: Personality, first: str) -> dict[str, Any]:
    from .._base.frozen import plain
    from ..config.secrets import masked

    return {**masked(plain(each)), "first": each.id == first}
