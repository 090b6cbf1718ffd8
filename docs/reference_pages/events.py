"""Generate `reference/events.md`: every event of a run."""

from importlib import import_module

from hookline import Event

from .fields import field_table
from .markdown import GENERATED, more, summary, table

HEAD = f"""# Events

A run reports what happens in one stream of events, numbered without gaps: to `agent.stream(...)`, `run.events()`,
sinks, and hooks with `on_event`. `hookline run --json` prints them as JSON lines, and a [server](../guides/api.md)
sends them, with the tag below as `type`. Events without a consumer are not created and not numbered. `run_finished`
is the last event. {GENERATED}

Every event has these fields:

"""

GROUPS = {
    "hookline._run.events": ("Events of a run", "Emitted by the loop in every run."),
    "hookline._kernel.events": ("Events of hooks", "Emitted wherever a point is fired."),
    "hookline.hooks.approvals": ("Events of ApprovalsHook", "Emitted by [ApprovalsHook](hooks/approvals.md)."),
    "hookline.hooks.shadow_mode": (
        "Events of shadow mode",
        "Emitted by a hook in [shadow mode](hooks/shadow_mode.md).",
    ),
    "hookline.server.events": (
        "Events of a server",
        "The first and the last event of every served run.",
    ),
}
COMMON = Event.__struct_fields__


def page(_: str) -> str:
    """Return the page."""
    for module in GROUPS:
        import_module(module)
    kinds = [kind for kind in Event.__subclasses__() if kind.__module__.startswith("hookline.")]
    new = {kind.__module__ for kind in kinds} - GROUPS.keys()
    if new:
        raise LookupError(f"describe in {__name__} the events of {', '.join(new)}")
    text = HEAD + field_table(Event)
    for module, (title, said) in GROUPS.items():
        mine = [kind for kind in kinds if kind.__module__ == module]
        rows = [(f"[`{_tag(kind)}`](#{kind.__name__.lower()})", summary(kind)) for kind in mine]
        text += f"\n## {title}\n\n{said}\n\n" + table(("type", "emitted when"), rows)
        text += "".join(map(_section, mine))
    return text


def _tag(kind: type[Event]) -> str:
    return str(kind.__struct_config__.tag)


def _section(kind: type[Event]) -> str:
    fields = field_table(kind, leave_out=COMMON)
    rest = f"\n{more(kind)}\n" if more(kind) else ""
    return f"\n### {kind.__name__}\n\n`{_tag(kind)}`: {summary(kind)}\n{rest}" + (f"\n{fields}" if fields else "")
