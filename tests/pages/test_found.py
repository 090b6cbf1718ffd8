"""A newcomer finds the page for a job on the front page, and typed code that does it on its first screen."""

import ast
import re
import tomllib
from dataclasses import dataclass

import pytest

from .blocks import PAGES, ROOT

FRONT = "docs/index.md"
FIRST_SCREEN = 36
"""Lines from the top of a page to the line with the answer: a browser window of 1280 by 900 pixels shows as many."""


@dataclass(frozen=True)
class Question:
    """What a newcomer asks, the page for it, and the beginning of the line of code or the command that answers it."""

    asked: str
    page: str
    answer: str


QUESTIONS = [
    Question(
        "How do I get a pydantic model back, and a database into my tools?", "guides/output", "result = agent.run("
    ),
    Question(
        "What does each user cost per day, and how do I limit it?", "guides/cost-per-user", "limit = SpendingLimit("
    ),
    Question("How does a person approve a payment before it is made?", "guides/approvals", "def approve("),
    Question("How do I keep personal data away from the model?", "reference/hooks/sensitive_data", "guard = "),
    Question("How do I keep a coding agent in its folder?", "guides/sandbox", "tools=[*file_tools("),
    Question("How do I get traces in OpenTelemetry?", "guides/opentelemetry", "agent = Agent("),
    Question("What would my new rule have blocked last month?", "guides/evidence", "report = backtest("),
    Question("How do I test a hook with pytest?", "guides/testing", "def test_"),
    Question("How do I put an agent into my FastAPI app?", "guides/fastapi", "app.mount("),
    Question(
        "How do I guard the tools of my LangChain agent?", "guides/other-frameworks/langchain", "return create_agent("
    ),
    Question("How do I guard Claude Code or Codex?", "guides/coding-agents", "$ hookline protect"),
    Question("How does a run survive kill -9?", "guides/durable", "result = agent.run("),
    Question("What can the model do that needs no key?", "guides/small-models", "agent = Agent("),
]


def links(page):
    """The pages that a page links to."""
    folder = (ROOT / page).parent
    targets = re.findall(r"\]\(([^)#\s]+\.md)(?:#[^)]*)?\)", (ROOT / page).read_text())
    paths = [(folder / target).resolve() for target in targets]
    return {str(path.relative_to(ROOT)) for path in paths if path.is_file()}


def test_the_page_for_each_question_is_one_click_from_the_front_page():
    far = [question.asked for question in QUESTIONS if f"docs/{question.page}.md" not in links(FRONT)]
    assert far == []


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.page)
def test_typed_code_that_answers_is_on_the_first_screen(question):
    page = f"docs/{question.page}.md"
    kinds = ("console",) if question.answer.startswith("$ ") else ("python", "py")
    block = next(block for block in PAGES[page] if block.kind in kinds)
    lines = [
        number for number, line in enumerate(block.text.splitlines(), 1) if line.strip().startswith(question.answer)
    ]
    assert lines, f"{block} does not answer: {question.asked}"
    assert block.line + lines[0] <= FIRST_SCREEN
    code = "" if block.kind == "console" else block.text
    assert [node.name for node in ast.walk(ast.parse(code)) if is_untyped(node)] == []


def is_untyped(node):
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is None


def test_every_page_is_at_most_two_clicks_from_the_front_page():
    """A click in the navigation counts: its lists, and the pages of the folders in them."""
    listed = re.findall(r"^([\w./-]+)$", (ROOT / FRONT).read_text(), re.MULTILINE)
    near = {str((ROOT / "docs" / f"{name}.md").resolve().relative_to(ROOT)) for name in listed} | links(FRONT)
    for page in [*near]:
        if (ROOT / page).is_file():
            folder = (ROOT / page).with_suffix("") if not page.endswith("index.md") else (ROOT / page).parent
            near |= links(page) | {str(path.relative_to(ROOT)) for path in folder.glob("*.md")}
    assert sorted(page for page in PAGES if page.startswith("docs/") and page not in near | {FRONT}) == []


def test_the_readme_lists_every_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    table = re.findall(r"^\| (`.*?) \|", (ROOT / "README.md").read_text().partition("| extra | for |")[2], re.MULTILINE)
    assert sorted(re.findall(r"`([\w-]+)`", " ".join(table))) == sorted(extras)


def test_the_readme_and_the_guides_teach_one_spelling_of_a_limit():
    """The hooks with limits have a page in the reference, for users of a system that has such hooks."""
    others = re.compile(
        r"\b(?:Steps|TokenUsage|ExecutionTime|Cost|ToolCalls)LimitHook\b|Agent\([^)]*\bmax_steps=|Budget\(Limits"
    )
    guides = ["README.md", *(page for page in PAGES if page.startswith(("docs/guides/", "docs/concepts/")))]
    assert [page for page in guides if others.search((ROOT / page).read_text())] == []


@pytest.mark.parametrize("page", ["README.md", "docs/guides/small-models.md"])
def test_what_the_embedded_model_is_for_is_said(page):
    told = " ".join((ROOT / page).read_text().replace("*", "").split())
    assert "picks tools" in told
    assert "no chat partner" in told


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/guides/")])
def test_a_guide_names_an_extra_as_users_of_the_package_install_it(page):
    assert re.findall(r"pip install -e '\.\[[^']*'", (ROOT / page).read_text()) == []
