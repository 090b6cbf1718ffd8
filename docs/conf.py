"""Sphinx configuration of the documentation site: `make docs`.

The source folder is the root of the repository, so that links to pages, `SECURITY.md` and examples work both there and
in the site. Reading the site needs no network.
"""

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
html_logo = "_static/logo.svg"
html_favicon = "_static/logo.svg"
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
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0f766e", "color-brand-content": "#0f766e"},
    "dark_css_variables": {"color-brand-primary": "#5eead4", "color-brand-content": "#5eead4"},
}
