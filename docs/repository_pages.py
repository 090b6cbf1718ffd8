"""Turn the Markdown pages of the repository into a site, without markup for Sphinx in the pages.

Links to source files and folders lead to generated pages. The pages of a folder are below its index, or below the page
with the name of the folder.
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
"""The folder of the site for pages generated from source files."""

_LINKED = "hookline_linked_files"


class LinkToSource(SphinxTransform):
    """Point links to source files and folders to the pages generated from them."""

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
                    continue  # Sphinx warns about it
                linked.add(path)
                here = posixpath.dirname(self.env.docname) or "."
                uri = posixpath.relpath(posixpath.join(SHOWN, path), here) + ".html"
                node.replace_self(nodes.reference("", "", *node.children, refuri=uri, internal=True))
        self.env.metadata[self.env.docname][_LINKED] = linked

    def _is_page(self, node: nodes.Element) -> bool:
        """Return whether a link leads to a page of the site; the first page replaces the README."""
        if node.get("refdomain") == "doc" and node["reftarget"] == "README":
            node["reftarget"] = self.config.root_doc
        domain = node.get("refdomain")
        return node["reftarget"] in self.env.found_docs if domain == "doc" else domain is not None


def _inside(root: Path, path: Path) -> str | None:
    """Return the path relative to the root, if the file or folder exists inside it."""
    try:
        found = path.resolve(strict=True).relative_to(root)
    except (OSError, ValueError):
        return None
    return found.as_posix()


def source_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield a page for each linked source file or folder, and for the files in such a folder.

    Pages newer than the file, the list of pages and the theme are not written again.
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
    """Put the pages of a folder below the page about it."""
    page = Path(app.srcdir) / docname
    if docname != app.config.root_doc and (page.name == "index" or page.is_dir()):
        inside = "*" if page.name == "index" else f"{page.name}/*"
        source[0] += f"\n\n```{{toctree}}\n:hidden:\n:glob:\n\n{inside}\n```\n"


def mark_doors(app: Sphinx, doctree: nodes.document) -> None:
    """Mark the list on the first page, which the style sheet shows as cards."""
    if app.env.docname == app.config.root_doc:
        for doors in list(doctree.findall(nodes.bullet_list))[:1]:
            doors["classes"].append("doors")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_transform(LinkToSource)
    app.connect("source-read", add_contents)
    app.connect("doctree-read", mark_doors)
    app.connect("html-collect-pages", source_pages)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
