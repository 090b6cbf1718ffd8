"""Generate the pages of the reference from the code, with one module for each page."""

from collections.abc import Callable

from . import (
    adapters,
    audit,
    command_line,
    configuration,
    decide,
    doors,
    events,
    hooks,
    kits,
    names,
    points,
    rules,
    typescript,
    verbs,
)

PAGES: dict[str, Callable[[str], str]] = {
    "reference/points.md": points.page,
    "reference/verbs.md": verbs.page,
    "reference/hooks/index.md": hooks.page,
    "reference/events.md": events.page,
    "reference/cli.md": command_line.page,
    "reference/configuration.md": configuration.page,
    **names.pages(),
    "reference/adapters.md": adapters.page,
    "reference/kits.md": kits.page,
    "reference/doors.md": doors.page,
    "reference/decide.md": decide.page,
    "guides/audit.md": audit.page,
    "guides/rules.md": rules.page,
    "../src/hookline/server/decide/client.ts": typescript.page,
}
"""Functions that return a page, given its current text, by path in `docs`."""
