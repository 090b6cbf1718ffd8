"""The page of a proposal: one file, safe with hostile text, and usable at every size."""

import asyncio
import json
import re

import pytest

from hookline.hooks._rules.file import Example, PastCall, RuleData
from hookline.records import Skipped
from hookline.suggest import (
    ArgumentUse,
    CurvePoint,
    Judged,
    Part,
    Proposal,
    ProposedRule,
    RecordedCall,
    Share,
    ToolUse,
    Value,
    proposal_page,
)
from hookline.suggest.report import headline
from tests.chromium import CHROMIUM, MISSING

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
LONG = "a" * 400


def judged(hits, stopped=3):
    return Judged(Share(hits, 200, 0.0, 0.04), Share(stopped, 5, 0.2, 0.8), hits / 10)


def proposal(text):
    """A proposal with a text in every place where text of a record may be."""
    example = Example("ask", arguments={"a": text}, history=(PastCall(text),))
    rule = RuleData("go.a.values", f"'{text}' == ''", "ask", text, tools=(text,), shadow=True, examples=(example,))
    call = RecordedCall(text, 3, 1.79e9, text, text, text)
    one = ProposedRule(rule, "values", text, 60, 30, judged(1), judged(2), (call,), 4)
    other = ProposedRule(RuleData("b", "true", "ask", "no"), "values", text, 9, 8, left_out=text)
    return Proposal(
        (one,), (other,), judged(2), judged(0, 1), (CurvePoint(1, "go.a.values", judged(1), judged(2)),), "1 %",
        Part(30, 60, 1.79e9, 1.791e9), Part(12, 20, 1.791e9, 1.7912e9, 4), Part(18, 200, 1.7912e9, 1.792e9, 5),
        (ToolUse(text, 280, 60, 4, 1, (ArgumentUse(text, 280, 2, (Value(text, 200), Value("", 80)), 1.0, 5.0),)),),
        60, 280, 900, 1, 0.4, (Skipped(text, text, 2, 7),), (text,),
    )  # fmt: skip


def test_the_page_is_one_file_without_network_and_without_markup_from_the_records():
    page = proposal_page(proposal(HOSTILE), about={HOSTILE: HOSTILE})
    assert HOSTILE not in page
    assert page.count("<script") == 3  # the data and two scripts
    assert "default-src 'none'" in page
    (data,) = re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)
    assert json.loads(data)["proposal"]["rules"][0]["what"] == HOSTILE


def test_the_command_of_an_exception_is_safe_in_a_shell():
    page = proposal_page(proposal("--html"))
    (data,) = re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)
    command = json.loads(data)["proposal"]["rules"][0]["exceptions"][0]["command"]
    assert command == "hookline explain --at 3 --records --html -- --html"


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (Proposal(), "No rule pays."),
        (proposal("x"), "1 rule would interrupt 2 of 200 later calls, 1.0 %, and stop 3 of 5 attacks."),
        (proposal("x").replace(judged=Judged(Share(0, 9))), "1 rule would interrupt 0 of 9 later calls, 0 %."),
    ],
)
def test_the_headline_is_the_answer_in_one_sentence(made, sentence):
    assert headline(made) == sentence


SIZES = [(390, 844, "dark"), (820, 1180, "light"), (1440, 900, "light")]


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES, ids=["phone", "tablet", "desk"])
@pytest.mark.parametrize(
    "made",
    [proposal("usual"), proposal(HOSTILE), proposal(LONG), Proposal()],
    ids=["usual", "hostile", "long", "empty"],
)
def test_the_page_fits_the_screen_and_runs_no_text(tmp_path, made, size):
    if not CHROMIUM:
        pytest.skip(MISSING)
    playwright = pytest.importorskip("playwright.async_api", reason="the browser tests need: pip install playwright")
    file = tmp_path / "report.html"
    file.write_text(proposal_page(made, about={"Records": HOSTILE}), encoding="utf-8")
    problems = []

    async def look():
        width, height, scheme = size
        async with playwright.async_playwright() as driver:
            options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
            browser = await driver.chromium.launch(executable_path=CHROMIUM, args=options)
            page = await browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.on("pageerror", lambda problem: problems.append(str(problem)))
            page.on("console", lambda message: problems.append(message.text))
            await page.goto(file.as_uri())
            for summary in await page.query_selector_all("details:not([open]) > summary"):
                await summary.click()
            wide = await page.evaluate("Math.max(0, document.documentElement.scrollWidth - window.innerWidth)")
            shown = await page.locator(".picked").all_inner_texts()
            found = wide, await page.title(), await page.locator("img").count(), shown
            await browser.close()
            return found

    wide, title, images, shown = asyncio.run(look())
    assert (wide, title, images, problems) == (0, headline(made), 0, [])
    assert not shown or "--at-most 0.5%" in shown[0]
