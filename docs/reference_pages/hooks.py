"""Generate `reference/hooks/index.md`: the built-in hooks and their arguments."""

from typing import Any

from hookline.hooks._catalog import CONCERNS, BuiltinRow, builtin_rows, load_builtin

from .markdown import GENERATED, block, call, cell, table

HEAD = f"""# Built-in hooks

Built-in hooks use only what every hook can use. Use them by name: `from hookline.hooks import TimingHook` in a program,
`hooks = [{{ use = "TimingHook" }}]` in `hookline.toml`, `--hooks TimingHook` on the command line. Each has a page with
an example and its arguments. `hookline hooks --built-in` shows them in a terminal.
{GENERATED}
"""


def page(_: str) -> str:
    """Return the page."""
    rows, text = builtin_rows(), HEAD
    for concern in CONCERNS:
        mine = [row for row in rows if row.concern == concern]
        cells = ((f"[`{row.name}`]({row.page}.md)", cell(row.what)) for row in mine)
        text += f"\n## {concern}\n\n" + table(("hook", "what it does"), cells)
        text += "".join(map(_section, mine))
    return text


def _section(row: BuiltinRow) -> str:
    value: Any = load_builtin(row.name)
    text = f"\n### {row.name}\n\n{block(call(row.name, value), 'py')}"
    if row.points:
        places = [f"`{point}` ({row.phase[point]}, {row.priority[point]:g})" for point in row.points]
        text += f"\nRuns at {', '.join(places)}. "
    else:
        text += "\n"
    return text + f"[More]({row.page}.md)\n"
