"""Generate `reference/configuration.md`: every setting, and every table of settings."""

import inspect
from importlib import import_module
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from hookline.channels.factory import BUILT_IN
from hookline.channels.options import GatewayOptions
from hookline.cli.options import capitalize
from hookline.config.secrets import mask
from hookline.config.settings import CONTROL, KEYS, LIMITS, MODEL, WORK, DeclaredChannel, DeclaredHook, Key
from hookline.plugins.manifest import Manifest, Setting
from hookline.server.options import LinkOptions, ServerOptions
from hookline.teams.personality import FIELDS, Personality

from .markdown import GENERATED, cell, code, default_words, listed, table

HEAD = f"""# Configuration

All settings of `hookline.toml`, or of `[tool.hookline]` in `pyproject.toml`. Each can also be set by an environment
variable, and most by an option; [the guide](../guides/command-line.md#configuration) explains which source takes
precedence. `hookline config` shows the effective settings and their sources. {GENERATED}

```toml
model = "anthropic:claude-sonnet-4-5"
hooks = ["rules.py", {{ use = "ToolOutputTruncatorHook", args = {{ max_chars = 2000 }} }}]
max_cost = 0.5

[params]
temperature = 0

[server]
port = 9000
```

Three variables are not settings: `HOOKLINE_CONFIG` names the configuration file, `HOOKLINE_TRUST=1` uses it without
asking ([trust](../guides/trust.md)), and `HOOKLINE_CACHE` names the folder for the weights of the embedded model. API
keys are not settings either: they stay in the environment (`OPENAI_API_KEY`, `ANTHROPIC_API_KEY`).
"""

GROUPS = {"The model": MODEL, "Tools and hooks": WORK, "Limits": LIMITS, "Control": CONTROL}
TYPES = {str: "text", bool: "true or false", int: "whole number", float: "number", dict: "table", Any: "any"}
JSON = {"True": "true", "False": "false"}
IN_DATA_FOLDER = {
    "sessions": "sessions",
    "runs": "runs-PROJECT-DIGEST.db",
    "approval_file": "approvals-PROJECT-DIGEST.db",
    "spending_file": "spending-PROJECT-DIGEST.db",
}


def page(_: str) -> str:
    """Return the page."""
    text = HEAD
    for title, group in GROUPS.items():
        keys = [key for key in KEYS.values() if key.about.group == group]
        rows = ((f"[`{key.name}`](#{key.name})", cell(key.about.help)) for key in keys)
        text += f"\n## {title}\n\n" + table(("setting", "meaning"), rows) + "".join(map(_setting, keys))
    text += _declared("A hook in hooks", DeclaredHook, "An item of `hooks` is a text, or a table with these keys.")
    text += _declared(
        "A channel in channels", DeclaredChannel, "An item of `channels` is a text, or a table with these keys."
    )
    text += "".join(_channel(word, *place) for word, place in BUILT_IN.items())
    text += _declared(
        "The table gateway", GatewayOptions, "Options of [hookline gateway](../guides/channels.md): `[gateway]`."
    )
    text += _declared("The table server", ServerOptions, "Options of [hookline serve](../guides/serve.md): `[server]`.")
    text += _declared(
        "The table server.approval_links",
        LinkOptions,
        "[Signed links](../guides/approvals.md#approve-by-link) to calls that wait for approval.",
    )
    text += _personality()
    text += _declared("A plugin's manifest", Manifest, "The keys of `plugin.toml` of a [plugin](../guides/plugins.md).")
    text += _declared("A setting of a plugin", Setting, "The keys of `[settings.NAME]` in a manifest.")
    return text


def _setting(key: Key) -> str:
    flags = [code(f"{flag} {key.about.metavar}".strip()) for flag in key.about.flag.split("/") if flag]
    short = [code(f"{key.about.short} {key.about.metavar}")] if key.about.short else []
    facts = [
        ("option", ", ".join((*flags, *short)) or "none"),
        ("environment", f"`{key.env}`"),
        ("default", _default(key)),
        ("value", key.expected if "{" not in key.expected else key.expected.replace("{", "`{").replace("}", "}`")),
    ]
    return f"\n### {key.name}\n\n{capitalize(key.about.help)}.\n\n" + "".join(
        f"- {name}: {said}\n" for name, said in facts
    )


def _default(key: Key) -> str:
    default: Any = key.default
    if key.name in IN_DATA_FOLDER:
        return f"`{IN_DATA_FOLDER[key.name]}` in the user's data folder"
    if default in (None, "", ()) or (key.is_table and not default):
        return "none"
    return f"`{default if isinstance(default, str) else msgspec.json.encode(mask(default)).decode()}`"


def _declared(title: str, kind: type[msgspec.Struct], intro: str) -> str:
    said, rows = listed(kind), []
    for field in msgspec.structs.fields(kind):
        if field.name not in said:
            raise LookupError(f"describe {field.name} in the docstring of {kind.__name__}")
        given = field.default if field.default is not msgspec.NODEFAULT else field.default_factory
        rows.append((f"`{field.name}`", _toml_type(field.type), _given(given), cell(said[field.name].rstrip("."))))
    return f"\n## {title}\n\n{intro}\n\n" + table(("key", "type", "default", "meaning"), rows)


def _given(default: Any) -> str:
    if default is msgspec.NODEFAULT:
        return "required"
    if default in (None, "", ()) or default in (dict, list):
        return ""
    return code(msgspec.json.encode(default).decode())


def _toml_type(kind: Any) -> str:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _toml_type(args[0])
    if origin is Literal:
        return ", ".join(f"`{msgspec.json.encode(arg).decode()}`" for arg in args)
    if origin in (Union, UnionType):
        return " or ".join(_toml_type(arg) for arg in args if arg is not NoneType)
    if origin is tuple:
        return "texts" if args[0] is str else "list"
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return "table"
    return TYPES[origin or kind]


def _channel(word: str, module: str, name: str) -> str:
    made: Any = getattr(import_module(f"hookline.channels{module}"), name)
    said = listed(made)
    rows = []
    for parameter in inspect.signature(made).parameters.values():
        if parameter.name == "name" or "TextIO" in str(parameter.annotation):
            continue
        default = "required" if parameter.default is parameter.empty else default_words(parameter.default)
        default = "" if default == "None" else default if default == "required" else code(JSON.get(default, default))
        rows.append((f"`{parameter.name}`", default, cell(said[parameter.name].rstrip("."))))
    page = f" [Guide](../guides/channels/{word}.md)." if word != "console" else ""
    intro = f'The `args` of a channel with `use = "{word}"`.{page}'
    return f"\n### Channel {word}\n\n{intro}\n\n" + table(("key", "default", "meaning"), rows)


def _personality() -> str:
    said = listed(Personality)
    rows = [
        (f"`{name}`", key.expected.replace(' such as { use = "module:name" }', ""), said[name].rstrip("."))
        for name, key in FIELDS.items()
    ]
    intro = "The keys in the file of a [personality](../guides/personalities.md). The settings apply to missing keys."
    return f"\n## A personality\n\n{intro}\n\n" + table(("key", "value", "meaning"), map(_cells, rows))


def _cells(row: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(cell, row))
