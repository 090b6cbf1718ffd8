"""What pages of a repository need to be pages of a site, with nothing written in them for its sake.

Links to files that are no pages, and to folders, lead to pages made of them. A page with a folder of its own name, and
the index of a folder, have the folder's pages below them.
"""

import posixpath
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

SHOWN = "source"
"""The folder of the site that such pages are in."""

_LINKED = "hookline_linked_files"


class LinkToSource(SphinxTransform):
    """Has links to files that are no pages, and to folders, lead to the pages made of them."""

    default_priority = 100

    def apply(self, **kwargs: Any) -> None:
        """Change the links of one document."""
        root = Path(self.env.srcdir)
        linked: set[str] = set()
        for kind in (addnodes.download_reference, addnodes.pending_xref):
            for node in list(self.document.findall(kind)):
                target = str(node["reftarget"])
                if kind is addnodes.pending_xref and node.get("refdomain") is not None:
                    continue
                path = _inside(root, Path(self.env.doc2path(self.env.docname)).parent / target)
                if path is None:
                    continue
                linked.add(path)
                here = posixpath.dirname(self.env.docname) or "."
                uri = posixpath.relpath(posixpath.join(SHOWN, path), here) + ".html"
                node.replace_self(nodes.reference("", "", *node.children, refuri=uri, internal=True))
        self.env.metadata[self.env.docname][_LINKED] = linked


def _inside(root: Path, path: Path) -> str | None:
    """The path from the root, of a file or folder that is there and inside it."""
    try:
        found = path.resolve(strict=True).relative_to(root)
    except (OSError, ValueError):
        return None
    return found.as_posix()


def source_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """A page for each file or folder that a page links to, and for what is in such a folder."""
    root = Path(app.srcdir)
    waiting = sorted({path for data in app.env.metadata.values() for path in data.get(_LINKED, ())})
    shown: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in shown:
            continue
        shown.add(name)
        path = root / name
        if path.is_dir():
            inner = sorted(item for item in path.iterdir() if _is_source(item))
            waiting += [item.relative_to(root).as_posix() for item in inner]
            items = (f'<li><a href="{path.name}/{item.name}.html">{escape(item.name)}</a></li>' for item in inner)
            body = f"<ul>{''.join(items)}</ul>"
        else:
            language = {".py": "python", ".toml": "toml", ".md": "markdown"}.get(path.suffix, "none")
            body = app.builder.highlighter.highlight_block(path.read_text(), language)  # type: ignore[attr-defined]
        yield f"{SHOWN}/{name}", {"title": name, "body": f"<h1>{escape(name)}</h1>\n{body}"}, "page.html"


def _is_source(path: Path) -> bool:
    if path.is_dir():
        return path.name not in ("__pycache__", "data")
    return path.suffix in (".py", ".toml", ".md")


def add_contents(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the pages of a folder below the page that speaks of it."""
    page = Path(app.srcdir) / docname
    if docname == app.config.root_doc:
        source[0] = _landed(source[0], page.parent)
    elif page.name == "index" or page.is_dir():
        inside = "*" if page.name == "index" else f"{page.name}/*"
        source[0] += f"\n\n```{{toctree}}\n:hidden:\n:glob:\n\n{inside}\n```\n"


def _landed(text: str, folder: Path) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(
        line for line in lines if not re.match(r"[\w./*-]+$", line) or any(folder.glob(f"{line.strip()}.md"))
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Take part in a build."""
    app.add_transform(LinkToSource)
    app.connect("source-read", add_contents)
    app.connect("html-collect-pages", source_pages)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
