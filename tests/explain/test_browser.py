"""The page of a run in a real browser."""

from base64 import b64decode
from contextlib import contextmanager

import msgspec
import pytest

from hookline import Agent, Attachment, ScriptedModel
from hookline.explain import RunView, compare, diff_html, explain, explain_html
from hookline.records import read_runs
from hookline.tape import TapeHook
from tests.chromium import CHROMIUM, needs_chromium
from tests.waiting import block_until

from . import office
from .long_run import long_run
from .test_page import HOSTILE, poisoned

playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need: pip install playwright")
expect = playwright.expect
expect.set_options(timeout=100_000)
pytestmark = [
    # Playwright runs an event loop in the thread of the test.
    pytest.mark.filterwarnings("ignore:.*blocks the event loop:RuntimeWarning"),
    pytest.mark.slow,
    needs_chromium,
]


@pytest.fixture(scope="module")
def browser():
    """One browser for all tests, because starting it is slow."""
    with playwright.sync_playwright() as driver:
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def office_page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    file = folder / "run.html"
    file.write_text(explain_html(explain(office.recorded(folder / "records"))), encoding="utf-8")
    return file


@contextmanager
def opened(browser, file, anchor="", **options):
    """Open a file. Fail if the page reports an error or a violation of its policy, or requests anything else."""
    context = browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **options})
    context.set_default_timeout(0)  # pytest's own timeout is the limit: a busy machine draws a page late
    page = context.new_page()
    problems, requests = [], []
    page.on("pageerror", lambda problem: problems.append(str(problem)))
    page.on("console", lambda message: problems.append(message.text))
    page.on("request", lambda request: requests.append(request.url))
    try:
        page.goto(f"{file.as_uri()}{anchor}")
        yield page
        assert problems == []
        assert requests == [file.as_uri()]
    finally:
        context.close()


def titles(page):
    """Return the titles of the steps that the list contains."""
    return page.locator(".step .title").all_text_contents()


def hit(page):
    return page.locator(".hit").get_attribute("id")


def test_a_run_is_drawn_with_its_hooks_in_firing_order(browser, office_page):
    with opened(browser, office_page) as page:
        assert page.title().startswith("completed: Check the ledger")
        assert page.locator(".why").inner_text() == "The model replied without calling a tool."
        assert titles(page) == [
            *("Start", "Step 1", "Step 2", "Step 3"),
            *("Start", "Step 1", "Step 2"),  # the subagent, after the step that started it
            *("Step 4", "Step 5", "Step 6"),
        ]
        chain = page.locator("#m30 .chain")
        assert chain.locator("> .spoke").all_text_contents() == ["no_deleting"]
        assert chain.locator("> .skipped").all_text_contents() == ["no_network"]
        assert chain.locator("> .passed").all_text_contents() == ["audit"]
        assert chain.locator("> .spoke .g.blocked").count() == 1
        assert chain.locator("> .passed .g.passed").count() == 1
        assert "rule 3: nothing is deleted" in page.locator("#m30").text_content()
        assert page.locator("#m8 del").all_text_contents() == ["4111-1111-1111-1111"]
        assert page.locator("#m8 ins").all_text_contents() == ["[card number]"]


def test_filters_by_verb_hook_and_tool_show_the_steps_that_match(browser, office_page):
    with opened(browser, office_page) as page:
        page.click("[data-only=blocked]")
        assert titles(page) == ["Step 1", "Step 4", "Step 5"]  # in the subagent; a call; a reply that a guard rejected
        assert page.locator(".run-line").count() == 1
        page.click("[data-only=blocked]")
        page.click(".choice[data-name=hide_cards]")
        assert titles(page) == ["Step 2"]
        page.click(".choice[data-name=hide_cards]")
        page.click(".choice[data-name=send_mail]")
        assert titles(page) == ["Step 5"]
        page.click("[data-only=blocked]")
        assert titles(page) == []
        page.click("text=Show everything")
        assert len(titles(page)) == 10


def test_the_search_finds_texts_and_marks_them(browser, office_page):
    with opened(browser, office_page) as page:
        page.keyboard.press("/")
        page.keyboard.type("CARD NUMBER")
        expect(page.locator(".step")).to_have_count(1)
        assert titles(page) == ["Step 2"]
        assert page.evaluate("CSS.highlights.get('found').size") > 0
        page.keyboard.press("Escape")
        assert len(titles(page)) == 10


def test_keys_move_from_one_intervention_to_the_next(browser, office_page):
    with opened(browser, office_page) as page:
        seen = []
        for _ in range(10):
            page.keyboard.press("n")
            seen.append(hit(page))
        assert seen == ["m0", "m1", "m8", "m25", "m14", "m17", "m30", "m33", "m36", "m37"]
        page.keyboard.press("n")
        assert hit(page) == "m0"
        page.keyboard.press("p")
        assert hit(page) == "m37"
        expect(page.locator(".hit")).to_be_in_viewport()
        page.click("[data-only=blocked]")
        page.keyboard.press("n")
        assert hit(page) == "m17"


def test_the_help_lists_the_keys(browser, office_page):
    with opened(browser, office_page) as page:
        page.keyboard.press("?")
        assert page.locator("dialog kbd").all_inner_texts() == ["n", "p", "/", "Esc", "?"]
        page.keyboard.press("Escape")
        assert not page.locator("dialog").is_visible()


def test_a_link_opens_its_moment(browser, office_page):
    with opened(browser, office_page, "#m30") as page:
        assert hit(page) == "m30"
        expect(page.locator("#m30")).to_be_in_viewport()


def test_a_nested_run_can_be_folded_and_is_linked_from_its_call(browser, office_page):
    with opened(browser, office_page) as page:
        page.click(".run-line button")
        assert len(titles(page)) == 7
        page.click("text=researcher: 2 steps")
        assert "run-line" in page.locator(".hit").get_attribute("class")


def background(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_the_page_follows_the_system_and_the_button_overrides_it(browser, office_page):
    with opened(browser, office_page, color_scheme="light") as page:
        light = background(page)
        page.click(".theme")
        dark = background(page)
        assert light != dark
    with opened(browser, office_page, color_scheme="dark") as page:
        assert background(page) == dark
        page.click(".theme")
        assert background(page) == light


@pytest.mark.parametrize("width", [390, 820, 1400])
def test_no_size_of_a_screen_scrolls_sideways(browser, office_page, width):
    with opened(browser, office_page, viewport={"width": width, "height": 844}) as page:
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.click("[data-only=changed]")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_hostile_text_is_shown_and_not_executed(browser, tmp_path):
    view = explain(office.recorded(tmp_path / "records"))
    file = tmp_path / "hostile.html"
    hostile = msgspec.convert(poisoned(msgspec.to_builtins(view)), RunView)
    file.write_text(explain_html(hostile), encoding="utf-8")
    with opened(browser, file) as page:
        assert page.title() != "owned"
        assert page.locator("h1").inner_text().startswith("<script>document.title='owned'")
        page.keyboard.press("n")
        assert page.locator("img").count() == 0
        assert page.locator("script").count() == 3
        assert HOSTILE.split("\n")[0] in page.locator(".step pre").first.inner_text()


def test_a_long_run_draws_only_what_is_near_and_reaches_the_rest(browser, tmp_path):
    file = tmp_path / "long.html"
    file.write_text(explain_html(long_run(20_000)), encoding="utf-8")
    with opened(browser, file) as page:
        assert page.evaluate("document.querySelectorAll('*').length") < 20_000
        page.keyboard.press("p")  # the last intervention
        last = page.locator(".hit")
        assert last.locator(".spoke").count() == 1
        expect(page.locator(".hit")).to_be_in_viewport()
        page.keyboard.press("/")
        page.keyboard.type("needle 4321")
        expect(page.locator(".step")).to_have_count(1)
        assert titles(page) == ["Step 4322"]


def test_rows_are_drawn_when_they_come_near_the_screen(browser, tmp_path):
    file = tmp_path / "long.html"
    file.write_text(explain_html(long_run(2_000)), encoding="utf-8")
    with opened(browser, file) as page:
        page.evaluate("scrollTo(0, document.body.scrollHeight / 2)")
        drawn = """[...document.querySelectorAll('.step')].some((step) => {
            const { top, bottom } = step.getBoundingClientRect();
            return top > 0 && bottom < innerHeight && step.innerText.includes("Step");
        })"""
        block_until(lambda: page.evaluate(drawn))  # wait_for_function would use eval, which the page's policy forbids
        assert len(titles(page)) < 200


@pytest.fixture(scope="module")
def diff_page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("diff")
    hooks = [hook for hook in office.HOOKS if hook is not office.no_deleting]
    one = explain(office.recorded(folder / "a"))
    other = explain(office.recorded(folder / "b", hooks=hooks))
    file = folder / "diff.html"
    file.write_text(diff_html(compare(one, other)), encoding="utf-8")
    return file


def test_two_runs_are_drawn_side_by_side_with_the_first_difference_marked(browser, diff_page):
    with opened(browser, diff_page) as page:
        assert page.locator(".pair").count() == 2
        first = page.locator(".pair.first")
        assert "Step 1 of researcher" in first.text_content()
        assert first.locator("del").first.bounding_box()["x"] < first.locator("ins").first.bounding_box()["x"]
        assert page.locator(".same").all_text_contents()[0].startswith("13 parts the same")


def test_keys_move_from_one_difference_to_the_next_and_folds_open(browser, diff_page):
    with opened(browser, diff_page) as page:
        page.keyboard.press("n")
        assert "first" in page.locator(".hit").get_attribute("class")
        page.keyboard.press("n")
        expect(page.locator(".hit .head b")).to_have_text("Step 4")
        page.locator(".same").first.click()
        assert page.locator(".pair").count() == 15
        page.click("text=Show all")
        assert page.locator(".pair").count() >= 20


@pytest.mark.parametrize("width", [390, 820, 1400])
def test_the_page_of_two_runs_does_not_scroll_sideways(browser, diff_page, width):
    with opened(browser, diff_page, viewport={"width": width, "height": 844}, color_scheme="dark") as page:
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_small_image_of_a_tape_is_shown_beside_its_type_size_and_digest(browser, tmp_path):
    dot = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M/wHwAEBgIApD5fRAAAAABJRU5ErkJggg=="
    photo = Attachment.of(b64decode(dot), name='<img src="x">.png')
    agent = Agent("test", llm=ScriptedModel(["A dot."]), hooks=[TapeHook(tmp_path / "run.tape")])
    agent.run("What is this?", attachments=[photo])
    (run,) = read_runs([tmp_path / "run.tape"])
    file = tmp_path / "run.html"
    file.write_text(explain_html(explain(run)), encoding="utf-8")
    with opened(browser, file) as page:
        page.locator("details.more summary").first.click()
        image = page.locator("dl.messages img.thumb")
        expect(image).to_be_visible()
        assert image.evaluate("image => image.naturalWidth") == 1
        assert image.get_attribute("alt") == f'<img src="x">.png, image/png, {photo.size} bytes'
        assert f"SHA-256 {photo.digest[:12]}" in page.locator("dl.messages").inner_text()


def test_a_call_that_nobody_approved_is_among_the_blocked(browser, office_page, tmp_path):
    record = office.recorded(tmp_path, hooks=[each for each in office.HOOKS if each is not office.ann])
    (tmp_path / "run.html").write_text(explain_html(explain(record)))
    for file, count in ((office_page, "3"), (tmp_path / "run.html", "4")):  # two calls, a reply; and the mail
        with opened(browser, file) as page:
            page.click("[data-only=blocked]")
            assert titles(page) == ["Step 1", "Step 4", "Step 5"]
            assert page.locator("[data-only=blocked] b").text_content() == count
