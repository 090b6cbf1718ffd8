"""A guard, a tool and a script about files, for the tests of single frameworks: only drafts may be written."""

from collections.abc import Callable
from pathlib import Path

from hookline import HookResult, guard
from hookline.models import call, reply
from hookline.points import BEFORE_TOOL

WRITE_DRAFT = (call("write", path="draft.txt"), reply("Done."))
"""What the model says: it writes a draft, then it is done."""


@guard(BEFORE_TOOL, tools="write")
def only_drafts(ctx, request):
    if not request.arguments["path"].endswith("draft.txt"):
        return HookResult.block("Only drafts may be written.")
    return None


def writer(folder: Path) -> Callable[[str], str]:
    """Return a function that writes files to a folder. A framework makes a tool of it."""

    def write(path: str) -> str:
        """Write a file."""
        (folder / path).write_text("written")
        return "ok"

    return write
