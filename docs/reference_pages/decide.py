"""Generate `reference/decide.md`: the questions and answers of `POST /decide`."""

from typing import Any, get_args

import msgspec

from hookline.server.decide.answers import Answer
from hookline.server.decide.examples import EXAMPLES
from hookline.server.decide.questions import ASKED, PAYLOADS

from .markdown import GENERATED, cell, table
from .typescript import Interfaces

HEAD = f"""# Questions and answers of POST /decide

The points that a program can ask about, with the fields of their payloads, and the answers.
[The guide](../guides/decide.md) says how to use them; `GET /decide/schema` has the same as a JSON schema. Types are
those of the TypeScript client. {GENERATED}

A question has these fields: `point`, `session`, `payload`, `agent` (the first one if left out), `run` (the run that the
program believes to be in) and, at `before_tool`, `wait`: how many seconds to wait for people, at most 60.

"""


def page(_: str) -> str:
    """Return the page."""
    rows = [(f"[`{point}`](#{point})", cell(point.when), cell(_names(PAYLOADS[point]))) for point in ASKED]
    text = HEAD + "## Points\n\n" + table(("point", "when it is asked", "payload"), rows)
    maker = Interfaces()
    for point in ASKED:
        example = msgspec.json.format(msgspec.json.encode(EXAMPLES[point]), indent=0).decode()
        text += f"\n### {point}\n\n{_fields(maker, PAYLOADS[point])}\n`{example}`\n"
    text += "\n## Values\n"
    shown = {kind.__name__ for kind in PAYLOADS.values()}
    for kind in sorted(maker.kinds, key=lambda kind: kind.__name__):
        if kind.__name__ not in shown:
            text += f"\n### {kind.__name__}\n\n{_fields(maker, kind)}"
    text += "\n## Answers\n\nEach answer has the `run` that the question belongs to.\n"
    for kind in get_args(Answer):
        doc = " ".join((kind.__doc__ or "").replace("``", "`").split())
        text += f"\n### {kind.__struct_config__.tag}\n\n{doc}\n\n{_fields(maker, kind)}"
    return text


def _names(kind: Any) -> str:
    fields = msgspec.structs.fields(kind)
    return ", ".join(f"`{each.encode_name}`{'' if each.required else '?'}" for each in fields)


def _fields(maker: Interfaces, kind: Any) -> str:
    fields = [each for each in msgspec.structs.fields(kind) if each.name != "run"]
    rows = [
        (f"`{each.encode_name}`", cell(f"`{maker.type_of(each.type)}`"), "yes" if each.required else "")
        for each in fields
    ]
    return table(("field", "type", "required"), rows) if rows else ""
