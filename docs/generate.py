"""Write the generated pages (`make docs`); with `--check`, list those that are out of date."""

import sys
from pathlib import Path

from cookbook_page import cookbook_page
from reference_pages import PAGES

HERE = Path(__file__).parent


def outdated() -> dict[Path, str]:
    """Return the outdated pages with their new text."""
    made = {}
    pages = PAGES | {"guides/cookbook.md": lambda _: cookbook_page()}
    for name, page in pages.items():
        path = HERE / name
        before = path.read_text() if path.exists() else ""
        after = page(before)
        if after != before:
            made[path] = after
    return made


if __name__ == "__main__":
    only_check = "--check" in sys.argv
    pages = outdated()
    for path, text in pages.items():
        if only_check:
            sys.stdout.write(f"{path.relative_to(HERE.parent)} is out of date: make docs\n")
        else:
            path.write_text(text)
    sys.exit(only_check and bool(pages))
