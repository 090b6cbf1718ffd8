"""Command line options for settings, generated from the declared settings and equal for all commands."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import msgspec
import typer

from ..config.errors import ConfigError
from ..config.settings import KEYS, Key
from ..config.sources import CUMULATIVE, MODEL_OPTIONS, Configuration, Flag, load
from .errors import print_note

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Since = Annotated[
    str | None, typer.Option(metavar="WHEN", help="Only runs since 30m, 24h, 7d, 2w ago, or since a date.")
]


def service_option(help: str, *names: str, panel: str | None = None, **options: Any) -> Any:
    """Return an option of a command that runs until it is stopped. Without a value, the settings decide."""
    return typer.Option(*names, help=help, show_default=False, rich_help_panel=panel, **options)


DURABLE = "Keep a journal of each run, so that another process can continue it. [default: no-durable]"


def with_table(config: Configuration, name: str, given: Mapping[str, Any]) -> Configuration:
    """Return the configuration with options in one of its tables. Options without a value are left as they are."""
    table = getattr(config.settings, name) | {key: value for key, value in given.items() if value is not None}
    return msgspec.structs.replace(config, settings=msgspec.structs.replace(config.settings, **{name: table}))


APPROVALS = {
    "ask": "When a hook asks for approval: run and chat ask at the terminal (and deny without one); serve and gateway "
    "wait. [default]",
    "wait": "Wait for a decision made with hookline approvals.",
    "yes": "Approve every call that a hook asks about.",
    "deny": "Deny every call that a hook asks about.",
}


StoredFlags = Callable[[Configuration, Mapping[str, Any]], Iterable[Flag]]
"""Returns settings that were given earlier, from the configuration and the own options of a command."""


def with_settings(
    *keys: str, needs_trust: bool = True, stored: StoredFlags | None = None
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Add options for these settings to a command (for all settings, if none are named).

    The command gets the loaded ``config`` as its first argument, and its own options unchanged. It runs after the user
    has trusted the configuration file; with ``needs_trust=False`` it only shows the settings. Settings that were given
    earlier (``stored``) count as if they were given now, unless others are.
    """

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        chosen = [key for key in (KEYS[name] for name in keys or KEYS) if key.about.flag]
        options = [option for key in chosen for option in _options(key)]

        @functools.wraps(command)
        def with_config(config_file: str | None = None, trust: bool = False, **given: Any) -> int:
            from .trust import require_trust, trust_notes

            names = {parameter.name for parameter in own}
            mine = {name: value for name, value in given.items() if name in names}
            flags = [flag for key in chosen for flag in _flags_of(key, given)]
            config = load(flags, file=config_file)
            if stored is not None:
                with require_trust(config, given=trust):  # the file may name the database
                    earlier = list(_not_given(stored(config, mine), config))
                config = load([*earlier, *flags], file=config_file)
            _check_tables(config)
            for note in config.notes:
                print_note(note)
            if not needs_trust:
                for note in trust_notes(config):
                    print_note(note)
                return command(config, **mine)
            with require_trust(config, given=trust):
                return command(config, **mine)

        with_config.__signature__ = inspect.Signature([*own, *options, _CONFIG, _TRUST])  # type: ignore[attr-defined]
        with_config.__annotations__ = {}
        return with_config

    return decorate


def _check_tables(config: Configuration) -> None:
    """Report invalid options of a server or a gateway in every command, not only in the one that uses them."""
    if config.settings.server:
        from ..server.options import ServerOptions

        ServerOptions.of(config.settings.server)
    if config.settings.gateway:
        from ..channels.options import GatewayOptions

        GatewayOptions.of(config.settings.gateway)


def _not_given(stored: Iterable[Flag], config: Configuration) -> Iterable[Flag]:
    """Yield the stored settings that are not given now. Those that all sources add to are always used."""
    given = {*config.given, *(MODEL_OPTIONS if "model" in config.given else ())}
    return (flag for flag in stored if flag.key not in given or flag.key in CUMULATIVE)


def capitalize(help_text: str) -> str:
    """Capitalize the help of a setting, unless it begins with a value."""
    first = help_text.split(maxsplit=1)[0]
    return help_text if first.endswith(",") else f"{help_text[0].upper()}{help_text[1:]}"


def _parameter(name: str, kind: Any, *decls: str, default: Any = None, **about: Any) -> inspect.Parameter:
    annotation = Annotated[kind, typer.Option(*decls, show_default=False, **about)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_CONFIG = _parameter(
    "config_file",
    str | None,
    "--config",
    metavar="FILE",
    help="Read the settings from this file.",
)
_TRUST = _parameter(
    "trust",
    bool,
    "--trust",
    default=False,
    help="Use the configuration file and its code without asking, for this run only.",
)


def _options(key: Key) -> Iterable[inspect.Parameter]:
    about = key.about
    if key.name == "approvals":
        for choice, text in APPROVALS.items():
            yield _parameter(choice, bool, f"--{choice}", default=False, help=text, rich_help_panel=about.group)
        return
    kind: Any = list[str] | None if key.is_list or key.is_table else bool | None if key.type is bool else str | None
    text = f"{capitalize(about.help)}."
    if key.default not in (None, (), {}, "", False, True) and key.name != "instructions":
        text += f" [default: {key.default}]"
    if key.is_list or key.is_table:
        text += " Repeatable."
    decls = [about.flag, *([about.short] if about.short else [])]
    metavar = {"metavar": about.metavar} if about.metavar else {}
    yield _parameter(key.name, kind, *decls, help=text, rich_help_panel=about.group, **metavar)


def _flags_of(key: Key, given: dict[str, Any]) -> Iterable[Flag]:
    if key.name == "approvals":
        chosen = [choice for choice in APPROVALS if given.get(choice)]
        if len(chosen) > 1:
            raise ConfigError(f"use only one of {', '.join(f'--{choice}' for choice in chosen)}")
        yield from (Flag(key.name, f"--{choice}", choice) for choice in chosen)
    elif given.get(key.name) is not None:
        on, _, off = key.about.flag.partition("/")
        yield Flag(key.name, off if off and given[key.name] is False else on, given[key.name])
