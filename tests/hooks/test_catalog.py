"""The table of all built-in hooks."""

import re
from pathlib import Path

import hookline.hooks
from hookline._kernel.hook import compile_hook
from hookline.hooks._catalog import BUILTINS, CONCERNS, builtin_rows, load_builtin
from hookline.points import POINTS
from tests.cases import each_case

PAGES = Path(__file__).parents[2] / "docs" / "reference" / "hooks"


def test_every_built_in_has_one_row_and_belongs_to_one_concern():
    assert sorted(row.name for row in builtin_rows()) == sorted(BUILTINS)
    assert [row.concern for row in builtin_rows()] == [concern for concern, names in CONCERNS.items() for _ in names]


@each_case("name", sorted(BUILTINS))
def test_a_row_has_a_one_sentence_summary_and_the_points(name):
    (row,) = [row for row in builtin_rows() if row.name == name]
    assert row.what.endswith(".")
    assert len(row.what) < 130
    if isinstance(load_builtin(name), type):
        assert row.points
        assert set(row.phase) == set(row.priority) == set(row.points) <= set(POINTS)


@each_case("name", sorted(BUILTINS))
def test_every_built_in_has_a_page(name):
    assert name in (PAGES / f"{BUILTINS[name]}.md").read_text()


@each_case("page", sorted(page.name for page in PAGES.glob("*.md") if page.name != "index.md"))
def test_what_has_a_page_can_be_imported_from_the_module_of_hooks(page):
    names = (PAGES / page).read_text().partition("\n")[0].removeprefix("# ").split(", ")
    assert names != [""]
    assert set(names) <= set(hookline.hooks.__all__)


def test_a_row_matches_the_registered_hook():
    rows = {row.name: row for row in builtin_rows()}
    for hook in (hookline.hooks.PathGuard("."), hookline.hooks.ResponseCacheHook(), hookline.hooks.ModelRetryHook()):
        row = rows[type(hook).__name__]
        for entry in compile_hook(hook):
            assert (entry.phase, entry.priority) == (row.phase[entry.point], row.priority[entry.point])


@each_case("row", [row for row in builtin_rows() if row.points])
def test_the_page_names_the_points_and_the_priority(row):
    paragraphs = (PAGES / f"{row.page}.md").read_text().split("\n\n")
    (fires,) = [" ".join(text.split()) for text in paragraphs if text.startswith("Fires")]
    assert [point for point in row.points if f"`{point}`" not in fires] == []
    priorities = re.findall(r"-?\b\d+\b", fires.partition("· priority ")[2])
    assert {f"{priority:g}" for priority in row.priority.values()} == set(priorities)
    listens = hasattr(load_builtin(row.name), "on_event")
    assert listens == ("listens to events" in fires)


def test_priorities_are_those_of_the_tiers():
    exceptions = {"GroundedReplyHook": 55, "ApprovalsHook": -100}  # design.md 4.4
    for row in builtin_rows():
        assert set(row.priority.values()) <= {200, 100, 80, 60, 50, 40, 0, -200, exceptions.get(row.name, 0)}, row.name


def test_cells_show_a_common_value_once():
    rows = {row.name: row for row in builtin_rows()}
    assert rows["PathGuard"].cells == ("before_tool", "guard", "100")
    assert rows["ResponseCacheHook"].cells == ("before_llm, after_llm", "guard, rewrite", "0, 200")
    assert rows["shadow"].cells == ("those of its hooks", "", "")
