"""Write the reference pages that the code itself can give: `make docs`."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from hookline import POINTS, Frozen
from hookline.builtin import CONCERNS
from hookline.builtin.catalogue import BuiltinRow, builtin_rows
from hookline.cli.exits import MEANINGS
from hookline.config.secrets import masked
from hookline.config.settings import KEYS, Key
from hookline.server.options import ServerOptions
from hookline.stores.audit.records import TYPES, Fields

HEAD = """# Points

Every moment a hook can take part in. This page is generated from the point table (`make docs`).

| point | model | payload | verbs | fires | a closed failure | fired by | also known as |
|---|---|---|---|---|---|---|---|
"""


FIELDS = """
## Payloads

What each of these carries; a hook that may `replace` may change the fields marked with *.

"""


def points_page() -> str:
    """The point table as a page."""
    rows = []
    for point in POINTS.values():
        verbs = ", ".join(f"`{verb}`" for verb in sorted(point.verbs))
        names = ", ".join(f"`{name}` ({source})" for source, name in point.names.items())
        payload = f"`{point.payload.__name__}`" + (f" → `{point.result.__name__}`" if point.result else "")
        cells = (f"`{point}`", point.model, payload, verbs, point.when, point.closed, point.fired_by, names)
        rows.append("| " + " | ".join(cells) + " |\n")
    return HEAD + "".join(rows) + FIELDS + "".join(_fields_of(kind) for kind in _kinds())


def _kinds() -> list[type[Frozen]]:
    used = [kind for point in POINTS.values() for kind in (point.payload, point.result) if kind is not None]
    return sorted(set(used), key=lambda kind: kind.__name__)


def _fields_of(kind: type[Frozen]) -> str:
    fields = msgspec.structs.fields(kind)
    names = ", ".join(f"`{field.name}`" + ("*" if field.name in kind.free else "") for field in fields)
    return f"- **`{kind.__name__}`**: {names}\n"


HOOKS_HEAD = """# Built-in hooks

Each is made of what any hook can use, and can be used by its name alone: `from hookline import TimingHook` in a
program, `hooks = [{ use = "TimingHook" }]` in a `hookline.toml`, `--hooks TimingHook` on the command line. What fires
where is in [points](../points.md). This page is generated (`make docs`).
"""


def hooks_page() -> str:
    """The index of built-in hooks, concern by concern."""
    rows, page = builtin_rows(), HOOKS_HEAD
    for concern in CONCERNS:
        heads = ("hook", "fires at", "phase", "priority", "what it does")
        page += f"\n## {concern}\n\n" + _table(heads, (_hook(row) for row in rows if row.concern == concern))
    return page


def _hook(row: BuiltinRow) -> tuple[str, ...]:
    points, phase, priority = row.cells
    shown = ", ".join(f"`{point}`" for point in row.points) or points
    return f"[`{row.name}`]({row.module}.md)", shown, phase, priority, row.what.replace("|", "\\|")


def cli_page(page: str) -> str:
    """The page on the command line, with the tables in it made anew."""
    settings = _table(("key", "option", "default", "what it is", "may be"), map(_setting, KEYS.values()))
    codes = _table(("code", "meaning"), ((str(code), meaning) for code, meaning in MEANINGS.items()))
    return _with_table(_with_table(page, "settings", settings), "exit codes", codes)


def audit_page(page: str) -> str:
    """The page on the audit log, with the table of records made anew."""
    return _with_table(page, "records", _table(("type", "written when", "fields"), map(_record, TYPES)))


def server_page(page: str) -> str:
    """The page on the server, with the table of its settings made anew."""
    told = dict(
        re.findall(r"^        (\w+): (.*?)(?=\n        \w+: |\n\n|\Z)", ServerOptions.__doc__ or "", re.M | re.S)
    )
    rows = []
    for field in msgspec.structs.fields(ServerOptions):
        default = msgspec.json.encode(field.default).decode() if field.default not in ("", ()) else ""
        about = " ".join(told[field.name].split()).replace("``", "`").rstrip(".")
        rows.append((f"`{field.name}`", f"`{default}`" if default else "", about))
    return _with_table(page, "server", _table(("setting", "default", "what it is"), rows))


def _record(kind: type[Fields]) -> tuple[str, ...]:
    fields = [f"*`{name}`*" if name in kind.texts else f"`{name}`" for name in kind.__struct_fields__]
    return f"`{kind.type}`", kind.when, ", ".join(fields)


def _with_table(page: str, name: str, table: str) -> str:
    before, mark, rest = page.partition(f"<!-- {name} -->\n")
    return f"{before}{mark}{table}<!-- end -->{rest.partition('<!-- end -->')[2]}"


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "".join("| " + " | ".join(row) + " |\n" for row in (heads, ("---",) * len(heads), *rows))


def _setting(key: Key) -> tuple[str, ...]:
    flags = ", ".join(f"`{flag}`" for flag in key.about.flag.split("/") if flag) or "in a file"
    return f"`{key.name}`", flags, _default(key), key.about.help, key.expected


def _default(key: Key) -> str:
    default: Any = key.default
    if key.name in ("sessions", "runs"):
        return "the user's data folder"
    if default is None:
        return "none"
    return f"`{default if isinstance(default, str) else msgspec.json.encode(masked(default)).decode()}`"


if __name__ == "__main__":
    here = Path(__file__).parent
    (here / "reference" / "points.md").write_text(points_page())
    (here / "reference" / "hooks" / "index.md").write_text(hooks_page())
    for name, page in {"command-line": cli_page, "audit": audit_page, "serve": server_page}.items():
        path = here / "guides" / f"{name}.md"
        path.write_text(page(path.read_text()))
