"""The page of a run: what its file contains. ``test_browser.py`` opens it."""

import re
from html.parser import HTMLParser

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.explain import explain, explain_fragment, explain_html
from hookline.explain.html import asset, html_page, json_block
from hookline.explain.view import RunView

from . import office

HOSTILE = """<script>document.title='owned'</script></script><!--<img src=x onerror="document.title='owned'">
\u2028\u2029 ]]> &lt; " ' ` ${1+1} \\u003c/script> \x00 {"a": 1}"""


class Elements(HTMLParser):
    """The elements of a page, and the text of its scripts."""

    def __init__(self, page):
        super().__init__()
        self.found, self.scripts = [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_data(self, text):
        if self.found and self.found[-1][0] == "script":
            self.scripts.append((self.found[-1][1].get("type", ""), text))


json = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(), st.sampled_from([HOSTILE, "</ScRiPt", "<!--", "\u2028", "\ud800"])),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)),
    max_leaves=12,
)


@given(json)
def test_data_never_ends_its_element_and_stays_the_same(value):
    block = json_block(value)
    inside = block.removeprefix('<script type="application/json">').removesuffix("</script>")
    assert not set("<>&\u2028\u2029") & set(inside)
    encodable = msgspec.json.decode(inside)
    if "\\ud" not in repr(value):
        assert encodable == value


@given(st.text())
def test_a_title_is_text(title):
    page = html_page(title, assets=("theme.css",), data={})
    assert page.count("<title>") == 1
    assert "<script>" not in page


def test_a_page_allows_its_own_scripts_and_nothing_else(tmp_path):
    page = explain_html(explain(office.recorded(tmp_path)))
    elements = Elements(page)
    policy = next(a["content"] for tag, a in elements.found if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "require-trusted-types-for 'script'" in policy
    assert policy.count("'sha256-") == 4
    for tag, attributes in elements.found:
        assert not {"src", "href", "style", "onclick", "onload"} & attributes.keys(), (tag, attributes)
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page


def test_the_scripts_insert_text_only():
    for name in ("common.js", "explain.js", "diff.js"):
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", asset(name))


def test_hostile_text_in_every_field_stays_data(tmp_path):
    view = explain(office.recorded(tmp_path))
    hostile = msgspec.convert(poisoned(msgspec.to_builtins(view)), RunView)
    elements = Elements(explain_html(hostile))
    clean = Elements(explain_html(view))
    assert [tag for tag, _ in elements.found] == [tag for tag, _ in clean.found]
    data = msgspec.json.decode(next(text for kind, text in elements.scripts if kind == "application/json"))
    assert data["run"]["task"] == HOSTILE


def poisoned(value, key=""):
    """Replace every text by a hostile one, except the few that select the kind of a thing."""
    if isinstance(value, dict):
        return {name: poisoned(item, name) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        if key == "parts":
            return [[op, HOSTILE] for op, _ in value]
        return [poisoned(item, key) for item in value]
    return HOSTILE if isinstance(value, str) and key not in ("kind", "phase", "verb") else value


def test_a_fragment_has_no_script_that_runs(tmp_path):
    elements = Elements(explain_fragment(explain(office.recorded(tmp_path))))
    assert elements.found == [("div", {"class": "hookline-explain"}), ("script", {"type": "application/json"})]


@pytest.mark.parametrize("name", ["theme.css", "explain.css", "diff.css", "common.js", "explain.js", "diff.js"])
def test_the_assets_are_part_of_the_package(name):
    assert asset(name)
