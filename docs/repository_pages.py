"""What pages of a repository need to be pages of a site, with nothing written in them for its sake.

Links to files that are no pages, and to folders, lead to pages made of them. A page with a folder of its own name, and
the index of a folder, have the folder's pages below them.
"""

import posixpath
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
        root, linked = Path(self.env.srcdir), set()
        for kind in (addnodes.download_reference, addnodes.pending_xref):
            for node in list(self.document.findall(kind)):
                if self._is_page(node):
                    continue
                name = f"{node['reftarget']}.md" if node.get("refdomain") == "doc" else node["reftarget"]
                start = root if node.get("refdomain") == "doc" else Path(self.env.doc2path(self.env.docname)).parent
                path = _inside(root, start / name)
                if path is None:
                    continue  # which is a warning
                linked.add(path)
                here = posixpath.dirname(self.env.docname) or "."
                uri = posixpath.relpath(posixpath.join(SHOWN, path), here) + ".html"
                node.replace_self(nodes.reference("", "", *node.children, refuri=uri, internal=True))
        self.env.metadata[self.env.docname][_LINKED] = linked

    def _is_page(self, node: nodes.Element) -> bool:
        """Whether it leads to a page of the site; the README's place is taken by the first page."""
        if node.get("refdomain") == "doc" and node["reftarget"] == "README":
            node["reftarget"] = self.config.root_doc
        domain = node.get("refdomain")
        return node["reftarget"] in self.env.found_docs if domain == "doc" else domain is not None


def _inside(root: Path, path: Path) -> str | None:
    """The path from the root, of a file or folder that is there and inside it."""
    try:
        found = path.resolve(strict=True).relative_to(root)
    except (OSError, ValueError):
        return None
    return found.as_posix()


def source_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """A page for each file or folder that a page links to, and for what is in such a folder.

    Those that were made since the file, the list of pages or the look of the site changed stay as they are.
    """
    root = Path(app.srcdir)
    look = max(
        path.stat().st_mtime for path in (root / f"{app.config.root_doc}.md", *Path(__file__).parent.glob("*.py"))
    )
    waiting = sorted({path for data in app.env.metadata.values() for path in data.get(_LINKED, ())})
    shown: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in shown:
            continue
        shown.add(name)
        path, page = root / name, f"{SHOWN}/{name}"
        made = Path(app.builder.get_outfilename(page))  # type: ignore[attr-defined]
        current = made.exists() and made.stat().st_mtime > max(look, path.stat().st_mtime)
        if path.is_dir():
            inner = sorted(item for item in path.iterdir() if _is_source(item))
            waiting += [item.relative_to(root).as_posix() for item in inner]
            items = (f'<li><a href="{path.name}/{item.name}.html">{escape(item.name)}</a></li>' for item in inner)
            body = f"<ul>{''.join(items)}</ul>"
        elif not current:
            language = {".py": "python", ".toml": "toml", ".md": "markdown"}.get(path.suffix, "none")
            body = app.builder.highlighter.highlight_block(path.read_text(), language)  # type: ignore[attr-defined]
        if not current:
            yield page, {"title": name, "body": f"<h1>{escape(name)}</h1>\n{body}"}, "page.html"


def _is_source(path: Path) -> bool:
    if path.is_dir():
        return path.name not in ("__pycache__", "data")
    return path.suffix in (".py", ".toml", ".md")


def add_contents(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the pages of a folder below the page that speaks of it."""
    page = Path(app.srcdir) / docname
    if docname != app.config.root_doc and (page.name == "index" or page.is_dir()):
        inside = "*" if page.name == "index" else f"{page.name}/*"
        source[0] += f"\n\n```{{toctree}}\n:hidden:\n:glob:\n\n{inside}\n```\n"


def mark_doors(app: Sphinx, doctree: nodes.document) -> None:
    """The list on the first page is where people choose a way; the style sheet makes doors of it."""
    if app.env.docname == app.config.root_doc:
        for doors in list(doctree.findall(nodes.bullet_list))[:1]:
            doors["classes"].append("doors")


def setup(app: Sphinx) -> dict[str, Any]:
    """Take part in a build."""
    app.add_transform(LinkToSource)
    app.connect("source-read", add_contents)
    app.connect("doctree-read", mark_doors)
    app.connect("html-collect-pages", source_pages)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
