"""Every setting: its name, type, default and help, declared once."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from .._base.files import user_folder
from .._base.frozen import EMPTY, freeze, thaw
from .._base.text import did_you_mean
from ..stores.paths import default_runs_path
from .errors import ConfigError

INSTRUCTIONS = (
    "You are a careful assistant. Use the tools when they help, say plainly what you found, and answer briefly."
)

Count = Annotated[int, msgspec.Meta(ge=0)]
Amount = Annotated[float, msgspec.Meta(ge=0)]
Unlimited = Annotated[float, msgspec.Meta(gt=sys.float_info.max)]  # only math.inf is


class About(msgspec.Struct, frozen=True):
    """What people are told of a setting; ``flag`` is its option on the command line, if it has one."""

    help: str
    group: str
    flag: str
    metavar: str = ""
    short: str | None = None


class DeclaredHook(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A hook named in a configuration file: what or where it is, what it is made with, how it is registered.

    Args:
        use: ``FILE.py:name``, ``module:name``, or the name of a built-in hook.
        args: what it is made with, by name.
        points: where it fires, if not where it says itself.
        priority: higher ones come first.
        phase: ``rewrite``, ``guard`` or ``observe``.
        name: what it is called in messages and records.
        on_failure: ``closed``, ``open`` or ``block``.
        timeout: after how many seconds it counts as failed.
        tools: names or globs of the tools whose calls it is for.
    """

    use: str
    args: dict[str, Any] = {}
    points: tuple[str, ...] | None = None
    priority: float | None = None
    phase: str | None = None
    name: str | None = None
    on_failure: str | None = None
    timeout: float | None = None
    tools: str | tuple[str, ...] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """What ``HookRegistry.register`` is to be given."""
        names = ("points", "priority", "phase", "name", "on_failure", "timeout", "tools")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class DeclaredChannel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A channel named in a configuration file: what it is, what it is made with, and who may talk to it.

    Args:
        use: ``console``, ``webhook``, ``web``, ``mqtt``, ``telegram``, ``FILE.py:name`` or ``module:name``.
        name: what it is called; what ``use`` says if it is left out.
        args: what it is made with, by name.
        allow: the senders who may talk to the agent.
        pairing: whether others may be let in by a code.
        mention: whether a group must name the bot.
        approve: the senders who may approve calls there.
    """

    use: str
    name: str = ""
    args: dict[str, Any] = {}
    allow: tuple[str, ...] | None = None
    pairing: bool = False
    mention: bool = True
    approve: tuple[str, ...] = ()


MODEL, WORK, LIMITS, CONTROL = "Model", "Tools and hooks", "Limits", "Control"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of a run, a chat or a server. ``None`` sets no limit; ``math.inf`` lifts that of the steps."""

    model: Annotated[
        str,
        About("local, local:FILE.gguf, openai:NAME, anthropic:NAME or scripted:FILE", MODEL, "--model", "MODEL", "-m"),
    ] = "local"
    base_url: Annotated[str | None, About("another server for the model", MODEL, "--base-url", "URL")] = None
    api: Annotated[
        Literal["chat", "responses"] | None, About("which of OpenAI's interfaces to use", MODEL, "--api", "NAME")
    ] = None
    context: Annotated[Count | None, About("how many tokens a local model may hold", MODEL, "--context", "N")] = None
    params: Annotated[
        Mapping[str, Any],
        About("settings handed to the model, such as temperature=0", MODEL, "--param", "KEY=VALUE"),
    ] = EMPTY
    instructions: Annotated[str, About("the system prompt", MODEL, "--instructions", "TEXT")] = INSTRUCTIONS
    hooks: Annotated[
        tuple[str | DeclaredHook, ...],
        About("hooks: FILE.py, FILE.py:name, module:name or the name of a built-in one", WORK, "--hooks", "HOOKS"),
    ] = ()
    tools: Annotated[
        tuple[str, ...], About("tools: FILE.py, FILE.py:name or module:name", WORK, "--tools", "TOOLS")
    ] = ()
    default_tools: Annotated[
        bool, About("offer the file tools, the calculator and the clock", WORK, "--default-tools/--no-default-tools")
    ] = True
    mcp: Annotated[tuple[str, ...], About("MCP servers: a command or a URL", WORK, "--mcp", "TARGET")] = ()
    hosts: Annotated[
        tuple[str, ...],
        About("hosts that the fetch tool may reach; without any there is no fetch tool", WORK, "--host", "HOST"),
    ] = ()
    plugins: Annotated[
        tuple[str, ...],
        About("plugins that are on: installed ones, and those in the plugins folder", WORK, "--plugin", "NAME"),
    ] = ()
    plugins_folder: Annotated[
        str, About("the folder that plugins are looked for in", WORK, "--plugins-folder", "DIR")
    ] = "plugins"
    plugin_settings: Annotated[Mapping[str, Any], About("settings of plugins, by the plugin's name", WORK, "")] = EMPTY
    personalities: Annotated[
        str, About("the folder of the personalities that the agent can take on", WORK, "--personalities", "DIR")
    ] = ""
    personality: Annotated[str, About("the personality to begin with", WORK, "--personality", "NAME")] = ""
    tickets: Annotated[
        str, About("the SQLite file of a ticket board; there are tools for it then", WORK, "--tickets", "FILE.db")
    ] = ""
    skills: Annotated[str, About("the folder of skills that the agent may read", WORK, "--skills", "DIR")] = ""
    channels: Annotated[tuple[str | DeclaredChannel, ...], About("channels of hookline gateway", WORK, "")] = ()
    gateway: Annotated[Mapping[str, Any], About("how hookline gateway works", CONTROL, "")] = EMPTY
    server: Annotated[Mapping[str, Any], About("how hookline serve works", CONTROL, "")] = EMPTY
    folder: Annotated[str, About("the folder that file tools may see", WORK, "--folder", "DIR")] = "."
    write: Annotated[bool, About("let tools write in that folder", WORK, "--write/--no-write")] = False
    shell: Annotated[
        bool,
        About("offer a shell in that folder; what does more than read needs approval", WORK, "--shell/--no-shell"),
    ] = False
    max_steps: Annotated[
        Count | Unlimited | None,
        About("at most N model replies in a run; 20 unless a plugin sets another limit", LIMITS, "--max-steps", "N"),
    ] = None
    max_tokens: Annotated[Count | None, About("at most N tokens in a run", LIMITS, "--max-tokens", "N")] = None
    max_seconds: Annotated[Amount | None, About("at most S seconds for a run", LIMITS, "--max-seconds", "S")] = None
    max_cost: Annotated[Amount | None, About("at most so many USD for a run", LIMITS, "--max-cost", "USD")] = None
    max_tool_calls: Annotated[Count | None, About("at most N tool calls in a run", LIMITS, "--max-tool-calls", "N")] = (
        None
    )
    metadata: Annotated[
        Mapping[str, Any],
        About("what hooks are told of the user, such as user_role=admin", CONTROL, "--metadata", "KEY=VALUE"),
    ] = EMPTY
    approvals: Annotated[
        Literal["ask", "wait", "yes", "deny"],
        About("when a hook asks for approval", CONTROL, "--ask/--wait/--yes/--deny"),
    ] = "ask"
    approval_file: Annotated[
        str,
        About("the SQLite file of the calls that wait for approval", CONTROL, "--approval-file", "FILE.db"),
    ] = ""
    sessions: Annotated[
        str, About("the folder that sessions are kept in, or a SQLite file (.db)", CONTROL, "--sessions", "PATH")
    ] = ""
    audit: Annotated[str, About("write an audit log of what happens into this file", CONTROL, "--audit", "FILE")] = ""
    runs: Annotated[
        str | None,
        About("the SQLite file of runs, for hookline stats and hookline serve", CONTROL, "--runs", "FILE.db"),
    ] = ""
    debug: Annotated[bool, About("show full tracebacks", CONTROL, "--debug")] = False

    def __post_init__(self) -> None:
        for name in ("params", "metadata", "plugin_settings", "gateway", "server"):
            msgspec.structs.force_setattr(self, name, freeze(getattr(self, name)))
        if not self.sessions:
            msgspec.structs.force_setattr(self, "sessions", str(user_folder("data") / "sessions"))
        if not self.approval_file:
            msgspec.structs.force_setattr(self, "approval_file", str(user_folder("data") / "approvals.db"))
        if self.runs == "":
            msgspec.structs.force_setattr(self, "runs", str(default_runs_path(".")))


class Key(msgspec.Struct, frozen=True):
    """One setting."""

    name: str
    type: Any
    default: Any
    about: About

    @property
    def env(self) -> str:
        """The environment variable that sets it."""
        return f"HOOKLINE_{self.name.upper()}"

    @property
    def is_list(self) -> bool:
        """Whether it holds several values."""
        return get_origin(self.type) is tuple

    @property
    def is_table(self) -> bool:
        """Whether it holds named values."""
        return get_origin(self.type) is Mapping

    @property
    def may_be_none(self) -> bool:
        """Whether ``none`` is a value of it."""
        return type(None) in get_args(self.type)

    @property
    def expected(self) -> str:
        """What it may be, in words."""
        words = _in_words(self.type)
        return f"{words}, or none" if self.may_be_none else words


_WORDS = {str: "a text", bool: "true or false", int: "a whole number, 0 or more", float: "a number, 0 or more"}


def _in_words(kind: Any) -> str:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _in_words(args[0])
    if origin is Literal:
        return f"one of {', '.join(args)}"
    if origin is tuple:
        tables = any(isinstance(arg, type) and issubclass(arg, msgspec.Struct) for arg in get_args(args[0]))
        return "a list of texts" + (' and tables such as { use = "module:name" }' if tables else "")
    if origin is Mapping:
        return 'a table such as { key = "value" }'
    if args:
        return _in_words(next(arg for arg in args if arg is not type(None)))
    return _WORDS[kind]


def _keys() -> dict[str, Key]:
    hints = get_type_hints(Settings, include_extras=True)
    found = {}
    for field in msgspec.structs.fields(Settings):
        kind, *extras = get_args(hints[field.name])
        (about,) = [extra for extra in extras if isinstance(extra, About)]
        found[field.name] = Key(field.name, kind, field.default, about)
    return found


KEYS: Mapping[str, Key] = _keys()
"""Every setting by name, in the order they are shown."""


T = TypeVar("T", bound=msgspec.Struct)


def options_of(kind: type[T], name: str, table: Mapping[str, Any]) -> T:
    """The options in a table of settings, as a struct with a field for each.

    Raises:
        ConfigError: one that does not exist, or a value it cannot have.
    """
    kinds, fields = get_type_hints(kind), kind.__struct_fields__
    for key, value in table.items():
        choices = get_args(kinds[key]) if get_origin(kinds.get(key)) is Literal else (value,)
        if value not in choices:
            hint = did_you_mean(str(value), choices)
            raise ConfigError(f"{name}.{key}: expected one of {', '.join(choices)}; got {value!r:.80}.{hint}")
        if key not in fields and key in KEYS:
            raise ConfigError(f"{name}: {key!r} is no setting of the {name}: it belongs above [{name}]")
        if key not in fields:
            hint = did_you_mean(key, fields)
            raise ConfigError(f"{name}: there is no setting {key!r}.{hint} Known: {', '.join(fields)}")
    try:
        return msgspec.convert(thaw(table), kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        raise ConfigError(f"{name}{where.strip('`').removeprefix('$')}: {what}") from None
