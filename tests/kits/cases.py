"""Report what a kit finds: each case with ``yes``, or ``no`` and the reason."""

import json
from collections.abc import Callable

PNG = "data:image/png;base64,iVBORw0KGgo="


def report(cases: dict[str, Callable[[], None]]) -> None:
    """Run the cases and print the results as JSON."""
    found = {}
    for name, case in cases.items():
        try:
            case()
            found[name] = "yes"
        except Exception as error:  # noqa: BLE001 - the reason is the result
            found[name] = f"no: {type(error).__name__}: {error!s:.200}"
    print(json.dumps(found))


def must(condition: object, seen: object) -> None:
    """Fail with what was seen unless a condition holds."""
    if not condition:
        raise AssertionError(repr(seen))
