"""Every setting: its name, type, default and help, declared once."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from .._base.attachment import MAX_SIZE
from .._base.files import user_folder
from .._base.frozen import EMPTY, freeze, thaw
from .._base.text import did_you_mean
from ..records.segments import default_records_path
from ..stores.paths import default_approvals_path, default_runs_path, default_spending_path
from .errors import ConfigError

INSTRUCTIONS = (
    "You are a careful assistant. Use the tools when they help, say plainly what you found, and answer briefly."
)

Count = Annotated[int, msgspec.Meta(ge=0)]
Amount = Annotated[float, msgspec.Meta(ge=0)]
Unlimited = Annotated[float, msgspec.Meta(gt=sys.float_info.max)]  # matches only math.inf


class KeyInfo(msgspec.Struct, frozen=True):
    """The help text of a setting; ``flag`` is its command line option, if it has one."""

    help: str
    group: str
    flag: str
    metavar: str = ""
    short: str | None = None


class DeclaredHook(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A hook in a configuration file: where it is, its arguments, and its registration options.

    Args:
        use: ``FILE.py:name``, ``module:name``, or the name of a built-in hook.
        args: the arguments to create it with, by name.
        points: the points at which it runs, instead of its own.
        priority: hooks with higher priority run first.
        phase: ``rewrite``, ``guard`` or ``observe``.
        name: its name in messages and records.
        on_failure: ``closed``, ``open`` or ``block``.
        timeout: seconds after which it counts as failed.
        tools: names or globs of the tools whose calls it sees.
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
        """The options for ``HookRegistry.register``."""
        names = ("points", "priority", "phase", "name", "on_failure", "timeout", "tools")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class DeclaredChannel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A channel in a configuration file: its kind, its arguments, and its senders.

    Args:
        use: ``console``, ``webhook``, ``web``, ``mqtt``, ``telegram``, ``slack``, ``FILE.py:name`` or ``module:name``.
        name: its name; by default, the value of ``use``.
        args: the arguments to create it with, by name.
        allow: the senders who may talk to the agent.
        pairing: whether other senders may get access with a pairing code.
        mention: whether messages in a group must mention the bot.
        approve: the senders who may approve tool calls.
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
    """All settings of a run, a chat or a server. A limit of ``None`` is no limit, except for ``max_steps``.

    Example::

        settings = Settings(model="openai:gpt-5-mini", max_cost=0.10, write=True)
    """

    model: Annotated[
        str,
        KeyInfo(
            "local, local:FILE.gguf, VENDOR:NAME such as openai:NAME or groq:NAME, or scripted:FILE",
            MODEL,
            "--model",
            "MODEL",
            "-m",
        ),
    ] = "local"
    base_url: Annotated[str | None, KeyInfo("base URL of another model server", MODEL, "--base-url", "URL")] = None
    api: Annotated[
        Literal["chat", "responses"] | None, KeyInfo("OpenAI API to use: chat or responses", MODEL, "--api", "NAME")
    ] = None
    context: Annotated[Count | None, KeyInfo("context size of a local model in tokens", MODEL, "--context", "N")] = None
    params: Annotated[
        Mapping[str, Any],
        KeyInfo("parameters of the model, such as temperature=0", MODEL, "--param", "KEY=VALUE"),
    ] = EMPTY
    prices: Annotated[
        Mapping[str, Any],
        KeyInfo('prices in USD for a million tokens: { "groq:NAME" = { input = 0.5, output = 1.5 } }', MODEL, ""),
    ] = EMPTY
    instructions: Annotated[str, KeyInfo("the system prompt", MODEL, "--instructions", "TEXT")] = INSTRUCTIONS
    hooks: Annotated[
        tuple[str | DeclaredHook, ...],
        KeyInfo(
            "hooks: FILE.py, FILE.py:name, rules.toml, module:name or the name of a built-in hook",
            WORK,
            "--hooks",
            "HOOKS",
        ),
    ] = ()
    claude_hooks: Annotated[
        tuple[str, ...],
        KeyInfo(
            "hooks of Claude Code: a settings file, or the folder of a project (its .claude and yours)",
            WORK,
            "--claude-hooks",
            "PATH",
        ),
    ] = ()
    tools: Annotated[
        tuple[str, ...], KeyInfo("tools: FILE.py, FILE.py:name or module:name", WORK, "--tools", "TOOLS")
    ] = ()
    deps: Annotated[
        str,
        KeyInfo("function that creates ctx.deps of a run for its caller: FILE.py:name or module:name", WORK, ""),
    ] = ""
    default_tools: Annotated[
        bool, KeyInfo("offer the file tools, the calculator and the clock", WORK, "--default-tools/--no-default-tools")
    ] = True
    mcp: Annotated[tuple[str, ...], KeyInfo("MCP servers: a command or a URL", WORK, "--mcp", "TARGET")] = ()
    trusted_mcp: Annotated[
        tuple[str, ...],
        KeyInfo(
            "MCP servers whose statements about their tools are trusted: a command or a URL",
            WORK,
            "--trusted-mcp",
            "TARGET",
        ),
    ] = ()
    hosts: Annotated[
        tuple[str, ...],
        KeyInfo("hosts that the fetch tool may access; without hosts there is no fetch tool", WORK, "--host", "HOST"),
    ] = ()
    plugins: Annotated[
        tuple[str, ...],
        KeyInfo("enabled plugins: installed ones, and those in the plugins folder", WORK, "--plugin", "NAME"),
    ] = ()
    plugins_folder: Annotated[str, KeyInfo("folder with plugins", WORK, "--plugins-folder", "DIR")] = "plugins"
    plugin_settings: Annotated[Mapping[str, Any], KeyInfo("settings of plugins, by the plugin's name", WORK, "")] = (
        EMPTY
    )
    personalities: Annotated[str, KeyInfo("folder with personalities of the agent", WORK, "--personalities", "DIR")] = (
        ""
    )
    personality: Annotated[str, KeyInfo("personality of a new conversation", WORK, "--personality", "NAME")] = ""
    tickets: Annotated[
        str, KeyInfo("SQLite file of a ticket board, which the model gets tools for", WORK, "--tickets", "FILE.db")
    ] = ""
    skills: Annotated[
        str, KeyInfo("folder or database (.db) with skills that the agent may read", WORK, "--skills", "PATH")
    ] = ""
    channels: Annotated[tuple[str | DeclaredChannel, ...], KeyInfo("channels of hookline gateway", WORK, "")] = ()
    gateway: Annotated[Mapping[str, Any], KeyInfo("options of hookline gateway", CONTROL, "")] = EMPTY
    server: Annotated[Mapping[str, Any], KeyInfo("options of hookline serve", CONTROL, "")] = EMPTY
    folder: Annotated[str, KeyInfo("folder that file tools may access", WORK, "--folder", "DIR")] = "."
    write: Annotated[bool, KeyInfo("let tools write to that folder", WORK, "--write/--no-write")] = False
    shell: Annotated[
        bool,
        KeyInfo(
            "offer a shell in that folder, in a sandbox; see shell_profile for the commands that need approval",
            WORK,
            "--shell/--no-shell",
        ),
    ] = False
    shell_profile: Annotated[
        Literal["auto", "strict", "developer"],
        KeyInfo(
            "commands that run without a question: strict (those that only read), developer (ordinary work in the "
            "sandbox) or auto (developer in a sandbox, strict without one)",
            WORK,
            "--shell-profile",
            "NAME",
        ),
    ] = "auto"
    sandbox: Annotated[
        Mapping[str, Any],
        KeyInfo(
            "sandbox of the shell: level=auto, bubblewrap, landlock or off; and hosts, readable, writable",
            WORK,
            "--sandbox",
            "KEY=VALUE",
        ),
    ] = EMPTY
    max_steps: Annotated[
        Count | Unlimited | None,
        KeyInfo("at most N model replies in a run; 20 unless a plugin sets another limit", LIMITS, "--max-steps", "N"),
    ] = None
    max_tokens: Annotated[Count | None, KeyInfo("at most N tokens in a run", LIMITS, "--max-tokens", "N")] = None
    max_seconds: Annotated[Amount | None, KeyInfo("at most S seconds for a run", LIMITS, "--max-seconds", "S")] = None
    max_cost: Annotated[Amount | None, KeyInfo("at most this many USD for a run", LIMITS, "--max-cost", "USD")] = None
    max_tool_calls: Annotated[
        Count | None, KeyInfo("at most N tool calls in a run", LIMITS, "--max-tool-calls", "N")
    ] = None
    max_attachment: Annotated[
        Count | None,
        KeyInfo("largest size of an attachment, of a task or a tool result, in bytes", LIMITS, "--max-attachment", "N"),
    ] = MAX_SIZE
    suggestions: Annotated[
        tuple[str, ...],
        KeyInfo("what people could write first, shown by chat pages before a conversation begins", MODEL, ""),
    ] = ()
    metadata: Annotated[
        Mapping[str, Any],
        KeyInfo("metadata of the user for hooks, such as user_role=admin", CONTROL, "--metadata", "KEY=VALUE"),
    ] = EMPTY
    stream: Annotated[
        Literal["safe", "live"],
        KeyInfo(
            "when text is shown: safe (once no hook can reject it any more) or live (at once)",
            CONTROL,
            "--stream",
            "MODE",
        ),
    ] = "safe"
    approvals: Annotated[
        Literal["ask", "wait", "yes", "deny"],
        KeyInfo("reaction to calls that need approval", CONTROL, "--ask/--wait/--yes/--deny"),
    ] = "ask"
    database: Annotated[
        str,
        KeyInfo(
            "PostgreSQL database for runs, approvals, sessions, keys, messages and the index of the audit log that no "
            "other setting puts elsewhere",
            CONTROL,
            "--database",
            "URL",
        ),
    ] = ""
    approval_file: Annotated[
        str,
        KeyInfo("SQLite file of the calls that wait for approval", CONTROL, "--approval-file", "FILE.db"),
    ] = ""
    spending_file: Annotated[
        str,
        KeyInfo("SQLite file of what users, sessions and agents have spent", CONTROL, "--spending-file", "FILE.db"),
    ] = ""
    approval_policy: Annotated[
        Mapping[str, Any],
        KeyInfo("who may approve which calls, and which calls two people must approve", CONTROL, ""),
    ] = EMPTY
    sessions: Annotated[
        str, KeyInfo("folder for saved sessions, or a SQLite file (.db)", CONTROL, "--sessions", "PATH")
    ] = ""
    audit: Annotated[
        str | None,
        KeyInfo("file of the audit log; by default one per project, 'none' for no log", CONTROL, "--audit", "FILE"),
    ] = ""
    audit_index: Annotated[
        str | None,
        KeyInfo(
            "SQLite file (.db) for an index of the audit log; by default the database, 'none' for no index",
            CONTROL,
            "--audit-index",
            "FILE.db",
        ),
    ] = ""
    runs: Annotated[
        str | None,
        KeyInfo("SQLite file of recorded runs, for hookline stats and hookline serve", CONTROL, "--runs", "FILE.db"),
    ] = ""
    runs_required: Annotated[
        bool,
        KeyInfo(
            "stop a run at its next step while runs cannot be recorded; by default it goes on, and the gap is shown",
            CONTROL,
            "--runs-required/--no-runs-required",
        ),
    ] = False
    record: Annotated[
        bool,
        KeyInfo(
            "record what hooks see and decide, for hookline record, explain and backtest",
            CONTROL,
            "--record/--no-record",
        ),
    ] = False
    records: Annotated[
        str, KeyInfo("folder of the records; by default one per project", CONTROL, "--records", "DIR")
    ] = ""
    tapes: Annotated[str, KeyInfo("folder for tapes of the runs, for hookline replay", CONTROL, "--tapes", "DIR")] = ""
    debug: Annotated[bool, KeyInfo("show full tracebacks", CONTROL, "--debug")] = False

    def __post_init__(self) -> None:
        for name in (
            "params",
            "prices",
            "metadata",
            "plugin_settings",
            "gateway",
            "server",
            "sandbox",
            "approval_policy",
        ):
            msgspec.structs.force_setattr(self, name, freeze(getattr(self, name)))
        if not self.sessions:
            msgspec.structs.force_setattr(self, "sessions", self.database or str(user_folder("data") / "sessions"))
        if not self.approval_file:
            msgspec.structs.force_setattr(self, "approval_file", self.database or str(default_approvals_path(".")))
        if not self.spending_file:
            msgspec.structs.force_setattr(self, "spending_file", self.database or str(default_spending_path(".")))
        if self.audit_index == "":
            msgspec.structs.force_setattr(self, "audit_index", self.database)
        if not self.records:
            msgspec.structs.force_setattr(self, "records", str(default_records_path(".")))
        if self.runs == "":
            msgspec.structs.force_setattr(self, "runs", self.database or str(default_runs_path(".")))


class Key(msgspec.Struct, frozen=True):
    """A setting: its name, type, default and help."""

    name: str
    type: Any
    default: Any
    about: KeyInfo

    @property
    def env(self) -> str:
        """The environment variable that sets it."""
        return f"HOOKLINE_{self.name.upper()}"

    @property
    def is_list(self) -> bool:
        """Whether the setting is a list."""
        return get_origin(self.type) is tuple

    @property
    def is_table(self) -> bool:
        """Whether the setting is a table of named values."""
        return get_origin(self.type) is Mapping

    @property
    def may_be_none(self) -> bool:
        """Whether ``none`` is a valid value."""
        return type(None) in get_args(self.type)

    @property
    def expected(self) -> str:
        """Description of valid values, for error messages."""
        words = _type_text(self.type)
        return f"{words}, or none" if self.may_be_none else words


_TYPE_TEXTS = {str: "a text", bool: "true or false", int: "a whole number, 0 or more", float: "a number, 0 or more"}


def _type_text(kind: Any) -> str:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _type_text(args[0])
    if origin is Literal:
        return f"one of {', '.join(args)}"
    if origin is tuple:
        tables = any(isinstance(arg, type) and issubclass(arg, msgspec.Struct) for arg in get_args(args[0]))
        return "a list of texts" + (' and tables such as { use = "module:name" }' if tables else "")
    if origin is Mapping:
        return 'a table such as { key = "value" }'
    if args:
        return _type_text(next(arg for arg in args if arg is not type(None)))
    return _TYPE_TEXTS[kind]


def _keys() -> dict[str, Key]:
    hints = get_type_hints(Settings, include_extras=True)
    found = {}
    for field in msgspec.structs.fields(Settings):
        kind, *extras = get_args(hints[field.name])
        (about,) = [extra for extra in extras if isinstance(extra, KeyInfo)]
        found[field.name] = Key(field.name, kind, field.default, about)
    return found


KEYS: Mapping[str, Key] = _keys()
"""All settings by name, in the order in which they are shown."""


T = TypeVar("T", bound=msgspec.Struct)


def parse_table(kind: type[T], name: str, table: Mapping[str, Any]) -> T:
    """Convert a table of settings such as ``[gateway]`` to a struct with a field for each option.

    Raises:
        ConfigError: an option is unknown or has an invalid value.
    """
    kinds, fields = get_type_hints(kind), kind.__struct_fields__
    for key, value in table.items():
        choices = get_args(kinds[key]) if get_origin(kinds.get(key)) is Literal else (value,)
        if value not in choices:
            hint = did_you_mean(str(value), choices)
            raise ConfigError(f"{name}.{key}: expected one of {', '.join(choices)}; got {value!r:.80}.{hint}")
        if key not in fields and key in KEYS:
            raise ConfigError(f"{name}: {key!r} is not an option of the {name}: move it above [{name}]")
        if key not in fields:
            hint = did_you_mean(key, fields)
            raise ConfigError(f"{name}: unknown option {key!r}.{hint} Known options: {', '.join(fields)}")
    try:
        return msgspec.convert(thaw(table), kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        raise ConfigError(f"{name}{where.strip('`').removeprefix('$')}: {what}") from None
