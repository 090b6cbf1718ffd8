"""The fenced blocks of all pages."""

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
KINDS = (
    *("python", "py", "console", "sh", "toml", "json", "sql", "text", "markdown", "diff", "nginx", "ini", "yaml"),
    "ts",  # tests/server/decide/test_client.py runs these
)
"""What may stand behind a fence; `{toctree}` and the like are the site's. A kind that is new needs a test, here."""
GENERATED = (
    "docs/reference/cli.md",
    "docs/reference/hooks/index.md",
    "docs/guides/cookbook.md",
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs/reference/modules").glob("*.md"))),
)
"""Pages made from the code, whole: `docs/generate.py --check` compares them."""


@dataclass(frozen=True)
class Block:
    """A fenced block: where it is, its kind, its text, and the text and the block before it."""

    page: str
    line: int
    kind: str
    text: str
    above: str = field(repr=False)
    previous: "Block | None" = field(repr=False)

    def __str__(self):
        return f"{self.page}:{self.line}"

    @property
    def lead(self):
        """The paragraph above it; empty if it follows another block at once."""
        return self.above.strip().rpartition("\n\n")[2]

    @property
    def output_of(self):
        """The kind of the block that it is the output of: text right below it, or below "It prints"."""
        is_below = self.previous and (not self.above.strip() or re.search(r"prints:?$", self.lead))
        return self.previous.kind if self.kind == "text" and is_below else ""

    @property
    def file(self):
        """The file that the page tells the reader to write, if any."""
        named = re.match(r"# (\S+\.toml)\n", self.text) or re.search(
            r"(?:[Pp]ut this into|[Ww]rite this to|[Ss]ave this as) (?:a file )?`([^`]+)`", self.lead
        )
        return named[1] if named else ""


def pages():
    """Every page, by its path in the repository."""
    places = ("*.md", "bench/*.md", "docs/**/*.md", "examples/**/*.md", "tests/**/*.md")
    return sorted(str(path.relative_to(ROOT)) for place in places for path in ROOT.glob(place))


def blocks_in(text, page=""):
    """The fenced blocks of a text, also of those in lists."""
    found, above, opened = [], [], None
    for number, line in enumerate(text.splitlines(), 1):
        fence = re.match(r"( *)(`{3,}|~{3,}) *([^`]*)$", line)
        if opened is None and fence:
            opened, inside = (number, fence), []
        elif opened is None:
            above.append(line)
        elif fence and fence[2].startswith(opened[1][2]) and not fence[3].strip():
            (start, opening), opened = opened, None
            indent = len(opening[1])
            body = "".join(line[min(indent, len(line) - len(line.lstrip())) :] + "\n" for line in inside)
            before = found[-1] if found else None
            found.append(Block(page, start, opening[3].strip(), body, "\n".join(above), before))
            above = []
        else:
            inside.append(line)
    if opened is not None:
        raise ValueError(f"{page}:{opened[0]}: a fence that is not closed")
    return found


PAGES = {page: blocks_in((ROOT / page).read_text(), page) for page in pages()}


def of_kind(*kinds):
    """All blocks of these kinds."""
    return [block for blocks in PAGES.values() for block in blocks if block.kind in kinds]
