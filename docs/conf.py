"""Sphinx configuration of the documentation site: `make docs`.

The source folder is the root of the repository, so that links to pages, `SECURITY.md` and examples work both there and
in the site. Reading the site needs no network.
"""

import re
import sys
from pathlib import Path

from hookline import __version__

sys.path.insert(0, str(Path(__file__).parent))

project = "Hookline"
author = "the Hookline authors"
version = release = __version__
language = "en"

extensions = ["myst_parser", "repository_pages", "search_words"]
root_doc = "docs/index"
source_suffix = {".md": "markdown"}
include_patterns = ["docs/**.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md", "bench/RESULTS.md"]
exclude_patterns = [".*", "build", "dist", "src", "tests", "examples", "bench/peers", "bench/slm", "bench/venvs"]
templates_path = ["_templates"]

myst_heading_anchors = 6
myst_links_external_new_tab = False
highlight_language = "none"
nitpicky = True
smartquotes = False

html_theme = "furo"
html_title = f"Hookline {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
html_additional_pages = {"index": "home.html"}
html_use_index = False
html_copy_source = False
html_show_sourcelink = False
html_show_search_summary = False  # browsers do not let a page opened from a file fetch it
html_show_copyright = False
html_show_sphinx = False
pygments_style = "a11y-light"
pygments_dark_style = "a11y-dark"

CONSOLE = Path(__file__).parent.parent / "src/hookline/server/console/static"
REPORTS = Path(__file__).parent.parent / "src/hookline/explain/assets"
FURO = {
    "color-brand-primary": "accent",
    "color-brand-content": "accent",
    "color-brand-visited": "accent",
    "color-background-primary": "bg",
    "color-background-secondary": "rail",
    "color-background-border": "line",
    "color-background-hover": "hover",
    "color-foreground-primary": "ink",
    "color-foreground-secondary": "soft",
    "color-foreground-muted": "faint",
    "color-foreground-border": "edge",
    "color-code-background": "code",
    "color-inline-code-background": "code",
    "color-sidebar-item-background--current": "selected",
    "font-stack": "sans",
    "font-stack--monospace": "mono",
}
"""Variables of the theme, with the token of the console that each has, so that site and console look alike."""


def tokens(dark: bool) -> dict[str, str]:
    """Return the variables of the theme with the values of the console's style sheets."""
    styles = (REPORTS / "theme.css").read_text() + (CONSOLE / "console.css").read_text()
    values = {}
    for name, token in FURO.items():
        (value, *_) = re.findall(rf"--{token}: ([^;]+);", styles)
        pair = re.fullmatch(r"light-dark\(([^,]+), ([^)]+)\)", value)
        values[name] = pair[2 if dark else 1] if pair else value
    return values


html_logo = html_favicon = "../src/hookline/server/console/static/icon.svg"
html_theme_options = {"light_css_variables": tokens(dark=False), "dark_css_variables": tokens(dark=True)}
