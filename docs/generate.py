"""Write the reference pages that the code itself can give: `make docs`."""

from pathlib import Path

from reference_pages import PAGES

HERE = Path(__file__).parent


def outdated() -> dict[Path, str]:
    """The pages that are not as the code would have them, and what they should say."""
    made = {}
    for name, page in PAGES.items():
        path = HERE / name
        before = path.read_text() if path.exists() else ""
        after = page(before)
        if after != before:
            made[path] = after
    return made


if __name__ == "__main__":
    for path, text in outdated().items():
        path.write_text(text)
