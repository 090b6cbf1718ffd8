"""The search of the documentation site, in a real browser: people find a page by the words that they would type."""

import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from tests.chromium import CHROMIUM, needs_chromium

ROOT = Path(__file__).parents[2]
FOUND = {
    "LangChain": "docs/coming-from/langchain",
    "langchain middleware": "docs/coming-from/langchain",
    "pydantic-ai": "docs/coming-from/pydantic-ai",
    "OpenAI Agents": "docs/coming-from/openai-agents",
    "Claude Code": "docs/coming-from/claude-code",
    "Slack": "docs/guides/channels/slack",
    "FastAPI": "docs/guides/fastapi",
    "PII": "docs/reference/hooks/sensitive_data",
    "redact": "docs/reference/hooks/sensitive_data",
    "structured output": "docs/guides/output",
    "deps": "docs/guides/output",
    "OpenTelemetry": "docs/guides/opentelemetry",
    "coding agent": "docs/guides/sandbox",
    "embedded model": "docs/guides/small-models",
    "kill -9": "docs/guides/durable",
    "survive a crash": "docs/guides/durable",
    "backtest": "docs/guides/evidence",
    "pytest": "docs/guides/testing",
    "cost per user": "docs/guides/cost-per-user",
    "human in the loop": "docs/guides/approvals",
    "approve by link": "docs/guides/approvals",
    "guardrails": "docs/guides/guard-a-tool",
    "prompt injection": "docs/guides/injection",
    "test a hook": "docs/guides/testing",
    "ollama": "docs/guides/providers",
    "Gemini": "docs/guides/providers",
    "image": "docs/guides/attachments",
    "rate limit": "docs/reference/hooks/rate_limit",
    "sandbox": "docs/guides/sandbox",
    "telegram": "docs/guides/channels/telegram",
}


pytestmark = pytest.mark.timeout(600)  # the whole site is built first


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-c", "docs", "-d", folder / "trees", ".", folder / "html"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "html"


@needs_chromium
def test_a_page_is_among_the_first_three_for_the_words_that_people_search_for(site):
    missing = {}
    with sync_playwright() as driver:
        page = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]).new_page()
        for words, wanted in FOUND.items():
            page.goto(f"{(site / 'search.html').as_uri()}?q={words}")
            page.wait_for_function("/finished|did not match/.test(document.querySelector('#search-results').innerText)")
            links = page.eval_on_selector_all(
                "#search-results ul.search > li > a", "all => all.map(each => each.getAttribute('href'))"
            )
            if f"{wanted}.html" not in links[:3]:
                missing[words] = links[:3]
    assert missing == {}
