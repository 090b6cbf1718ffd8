"""The page of a backtest: one file, safe with hostile text, and usable at every size."""

import asyncio
import json
import re
import shlex

import msgspec
import pytest

from hookline.backtest import Cell, Confusion, Count, Example, Guess, HookFailure, Report
from hookline.backtest.page import explain_command, report_page
from hookline.backtest.report import KINDS, headline
from hookline.records import Skipped
from tests.chromium import CHROMIUM, MISSING

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


def example(number, certainty="exact", **fields):
    given = {"tool": "shell", "subject": '{"command": "rm -rf build"}', "now": "block by no_rm: rm is not allowed"}
    return Example(f"run-{number}", number, "before_tool", certainty=certainty, file="r/a.moments", **(given | fields))


REPORT = Report(
    ("no_rm", "ask_deploy"),
    files=3,
    runs=1204,
    nested=8,
    different_runs=2,
    moments=48210,
    judged=9120,
    certainty=Count(48001, 180, 29),
    cells=(
        Cell("no_rm", "before_tool", "shell", "newly_blocked", Count(2, 1), (example(1), example(2, "conditional"))),
        Cell("ask_deploy", "before_tool", "deploy", "newly_asked", Count(0, 0, 1), (example(3, "guess", then="old"),)),
        Cell("no_rm", "before_tool", "shell", "same", Count(9000, 100, 20)),
        Cell("", "before_llm", "", "same", Count(30000, 72, 8)),
    ),
    failures=(HookFailure("broken", "raised", "KeyError: 'url'", 3, (example(9),)),),
    guesses=(Guess("office_hours", "ctx.clock", 29),),
    skipped=(Skipped("r/b.moments", "the last line is incomplete", 1, 4411),),
    labels_then=Confusion(Count(4), Count(6), Count(1), Count(40)),
    labels=Confusion(Count(8, 1), Count(1), Count(2, 1), Count(38)),
    seconds=1.93,
    notes=("The rule 'loops' was given up.",),
)


def cells(*kinds):
    return tuple(Cell("h", "before_tool", "t", kind, Count(number)) for kind, number in kinds)


@pytest.mark.parametrize(
    ("report", "sentence"),
    [
        (REPORT, "2 of 1,204 runs would differ: 3 newly blocked, 1 newly asked."),
        (Report(runs=1, different_runs=1, cells=cells(("raised", 1))), "1 of 1 run would differ: 1 raised."),
        (Report(runs=7, judged=100, cells=cells(("same", 100))), "No decision would differ in 7 runs."),
        (Report(), "The records contain no runs, so nothing was judged."),
        (
            Report(runs=2, moments=9, failures=(HookFailure("no_rm", "timed_out", "it hung", 3),)),
            "No moment could be judged in 2 runs, because the rules failed.",
        ),
        (Report(runs=2, moments=9), "The rules were not called: 2 runs, and no moment at their points and tools."),
        (
            Report(runs=9, different_runs=9, cells=cells(*((kind, 1000) for kind in KINDS))),
            "9 of 9 runs would differ: 1,000 newly blocked, 1,000 no longer blocked, 1,000 newly asked, "
            "17,000 other differences.",
        ),
    ],
)
def test_the_headline_is_the_answer_in_one_sentence(report, sentence):
    assert headline(report) == sentence


def test_the_command_of_an_example_is_safe_in_a_shell():
    command = explain_command(example(5).replace(run_id="x; rm -rf ~", file="a b/$(id).moments"))
    words = ["hookline", "explain", "x; rm -rf ~", "--at", "5", "--records", "a b/$(id).moments"]
    assert shlex.split(command) == words
    assert explain_command(example(5).replace(run_id="--html")).endswith(" -- --html")


def hostile(value):
    """Return a report with hostile text in every field that may hold text."""
    if isinstance(value, (Report, Cell, Example, HookFailure, Guess, Skipped, Confusion, Count)):
        fixed = ("kind", "certainty", "problem")
        return msgspec.structs.replace(
            value,
            **{
                name: HOSTILE if isinstance(field, str) else hostile(field)
                for name in value.__struct_fields__
                if name not in fixed and (field := getattr(value, name)) is not None and field != Count()
            },
        )
    if isinstance(value, tuple):
        return tuple(HOSTILE if isinstance(item, str) else hostile(item) for item in value)
    return value


def test_the_page_is_one_file_without_network_and_without_markup_from_the_records():
    page = report_page(hostile(REPORT), about={HOSTILE: HOSTILE})
    assert HOSTILE not in page
    assert page.count("<script") == 3  # the data and two scripts
    assert "default-src 'none'" in page
    assert not re.search(r"\b(src|href)=", re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL))
    (data,) = re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)
    assert json.loads(data)["report"]["cells"][0]["hook"] == HOSTILE


def test_half_of_a_surrogate_pair_does_not_break_the_page():
    assert "newly blocked" in report_page(REPORT.replace(notes=("\ud83d",)))


SIZES = [(390, 844, "dark"), (820, 1180, "light"), (1440, 900, "light")]


@pytest.fixture(scope="module")
def in_browser():
    """Run an async function with a page that shows the report, and return what it returns."""
    if not CHROMIUM:
        pytest.skip(MISSING)
    playwright = pytest.importorskip("playwright.async_api", reason="the browser tests need: pip install playwright")
    loop = asyncio.new_event_loop()
    driver = loop.run_until_complete(playwright.async_playwright().start())
    options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    browser = loop.run_until_complete(driver.chromium.launch(executable_path=CHROMIUM, args=options))

    def run(test, folder, report, size=SIZES[2], about=None):
        file = folder / "report.html"
        file.write_text(report_page(report, about=about or {}), encoding="utf-8")

        async def whole():
            width, height, scheme = size
            context = await browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            page = await context.new_page()
            problems = []
            page.on("pageerror", lambda problem: problems.append(str(problem)))
            page.on("console", lambda message: problems.append(message.text))
            page.on("request", lambda request: None if request.url == file.as_uri() else problems.append(request.url))
            try:
                await page.goto(file.as_uri())
                found = await test(page)
            finally:
                await context.close()
            assert problems == []
            return found

        return loop.run_until_complete(whole())

    yield run
    loop.run_until_complete(browser.close())
    loop.run_until_complete(driver.stop())
    loop.close()


async def overflow(page):
    return await page.evaluate("Math.max(0, document.documentElement.scrollWidth - window.innerWidth)")


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES, ids=["phone", "tablet", "desk"])
@pytest.mark.parametrize("report", [REPORT, hostile(REPORT), Report()], ids=["usual", "hostile", "empty"])
def test_the_page_fits_the_screen_and_runs_no_text(in_browser, tmp_path, report, size):
    async def look(page):
        for button in await page.locator("button.open, summary").all():
            await button.click()
        return await overflow(page), await page.title(), await page.locator("img").count()

    assert in_browser(look, tmp_path, report, size, {"Rules": HOSTILE}) == (0, headline(report), 0)


@pytest.mark.slow
def test_rows_open_and_show_what_was_decided_then_and_now(in_browser, tmp_path):
    async def look(page):
        await page.get_by_role("button", name="ask_deploy").click()
        shown = await page.locator("tbody article.example").inner_text()
        await page.get_by_role("button", name="ask_deploy").click()
        return shown, await page.locator("tbody article.example").count()

    shown, left = in_browser(look, tmp_path, REPORT)
    for text in ("guess", "old", "block by no_rm", "run-3", "hookline explain run-3 --at 3 --records r/a.moments"):
        assert text in shown
    assert left == 0


@pytest.mark.slow
def test_rows_are_filtered_and_sorted(in_browser, tmp_path):
    async def rules(page):
        return [await row.locator("td").first.inner_text() for row in await page.locator("tr.row").all()]

    async def look(page):
        found = [await rules(page)]
        await page.get_by_role("button", name="Rule", exact=True).click()
        found.append(await rules(page))
        await page.get_by_role("group", name="How sure").get_by_role("button", name="guess").click()
        found.append(await rules(page))
        await page.get_by_label("All differences").select_option("same")
        found.append(await rules(page))
        await page.get_by_label("All rules").select_option("no_rm")
        found.append(await rules(page))
        await page.get_by_label("Search").fill("nothing like that")
        found.append([await page.get_by_role("status").inner_text()])
        return found

    assert in_browser(look, tmp_path, REPORT) == [
        ["no_rm", "ask_deploy"],
        ["ask_deploy", "no_rm"],
        ["no_rm"],
        ["no hook", "no_rm"],
        ["no_rm"],
        ["Nothing matches the filters."],
    ]


@pytest.mark.slow
def test_a_report_with_thousands_of_rows_is_drawn_in_parts(in_browser, tmp_path):
    many = tuple(Cell(f"hook{n}", "before_tool", f"tool{n}", "newly_blocked", Count(n + 1)) for n in range(5000))

    async def look(page):
        first = await page.locator("tr.row").count()
        await page.get_by_role("button", name="Show 200 more").click()
        return first, await page.locator("tr.row").count()

    assert in_browser(look, tmp_path, REPORT.replace(cells=many)) == (200, 400)
