"""Self-contained HTML pages: no request to anywhere, and no way for the text of a run to become code.

The data of a page is JSON in a script element that is not executed. Its scripts draw it with ``textContent`` only. The
content security policy allows exactly the styles and scripts of the page, by their digest, and no network.
"""

from __future__ import annotations

import base64
import hashlib
import html
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from .._base.frozen import scrub

_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_ESCAPE_TABLE = str.maketrans(_ESCAPES)


@cache
def asset(name: str) -> str:
    """Return a style sheet or script of this package, such as ``theme.css``."""
    return (files("hookline.explain") / "assets" / name).read_text(encoding="utf-8")


def json_block(value: Any) -> str:
    """Return a script element that contains a value as JSON. It is data: browsers do not execute it."""
    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeEncodeError:  # half of a surrogate pair
        text = msgspec.json.encode(scrub(msgspec.to_builtins(value))).decode()
    return f'<script type="application/json">{text.translate(_ESCAPE_TABLE)}</script>'


def html_page(title: str, *, assets: tuple[str, ...], data: Any = None, body: str = "") -> str:
    """Return a whole page that needs no other file and no network.

    Args:
        title: the title, as text.
        assets: the names of style sheets and scripts of this package, in order.
        data: a value for the scripts; ``hookline.data()`` in ``common.js`` returns it.
        body: HTML before the scripts. Text of a run belongs into ``data``.

    Example::

        html_page("Backtest", assets=("theme.css", "common.js", "report.css", "report.js"), data=report)
    """
    styles, scripts = _inline(assets)
    head = "\n".join(
        (
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{page_policy(assets)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>{html.escape(scrub(title))}</title>",
            *(f"<style>{style}</style>" for style in styles),
        )
    )
    block = "" if data is None else json_block(data)
    code = "\n".join(f"<script>{script}</script>" for script in scripts)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{body}\n{block}\n{code}\n'
        "</body>\n</html>\n"
    )


@cache
def page_policy(assets: tuple[str, ...]) -> str:
    """Return the content security policy of a page with these assets. A server sends it as a header too."""
    styles, scripts = _inline(assets)
    return "; ".join(
        (
            "default-src 'none'",
            " ".join(("style-src", *map(_source, styles))),
            " ".join(("script-src", *map(_source, scripts))),
            "img-src data:",  # attached images
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _inline(assets: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return the texts of the style sheets and of the scripts."""
    texts = {name: asset(name) for name in assets}
    return (
        [text for name, text in texts.items() if name.endswith(".css")],
        [text for name, text in texts.items() if name.endswith(".js")],
    )


def _source(text: str) -> str:
    """Return the source expression of a policy that allows exactly this inline style or script."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
