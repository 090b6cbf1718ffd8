"""`reference/events.md`: every event of a run."""

from importlib import import_module

from hookline import Event

from .fields import field_table
from .markdown import GENERATED, more, table, told

HEAD = f"""# Events

What a run reports, in one stream, numbered without gaps: to `agent.stream(...)`, to `run.events()`, to sinks, and
to hooks with `on_event`. `hookline run --json` writes them a line each, and a [server](../guides/api.md) sends
them; there `type` is the tag below. What nobody wants is not made and not numbered. After `run_finished` there is
nothing. {GENERATED}

Every event has these fields:

"""

GROUPS = {
    "hookline._run.events": ("The course of a run", "Made by the loop, in every run."),
    "hookline._kernel.events": ("What hooks did", "Made wherever a point is fired."),
    "hookline.hooks.approvals": ("Of ApprovalsHook", "Made by [ApprovalsHook](hooks/approvals.md)."),
    "hookline.hooks.shadow_mode": ("Of shadow", "Made by a hook under [shadow](hooks/shadow_mode.md)."),
    "hookline.server.events": (
        "Of a server",
        "The first and the last event of every served run.",
    ),
}
COMMON = Event.__struct_fields__


def page(_: str) -> str:
    """The page."""
    for module in GROUPS:
        import_module(module)
    kinds = [kind for kind in Event.__subclasses__() if kind.__module__.startswith("hookline.")]
    new = {kind.__module__ for kind in kinds} - GROUPS.keys()
    if new:
        raise LookupError(f"say in {__name__} what the events of {', '.join(new)} are")
    text = HEAD + field_table(Event)
    for module, (title, said) in GROUPS.items():
        mine = [kind for kind in kinds if kind.__module__ == module]
        rows = [(f"[`{_tag(kind)}`](#{kind.__name__.lower()})", told(kind)) for kind in mine]
        text += f"\n## {title}\n\n{said}\n\n" + table(("type", "when it comes"), rows)
        text += "".join(map(_section, mine))
    return text


def _tag(kind: type[Event]) -> str:
    return str(kind.__struct_config__.tag)


def _section(kind: type[Event]) -> str:
    fields = field_table(kind, leave_out=COMMON)
    rest = f"\n{more(kind)}\n" if more(kind) else ""
    return f"\n### {kind.__name__}\n\n`{_tag(kind)}`: {told(kind)}\n{rest}" + (f"\n{fields}" if fields else "")
