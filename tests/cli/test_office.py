"""The tour of docs/guides/office.md, as a newcomer takes it: the gateway, the embedded model, a browser."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chromium import CHROMIUM, needs_chromium

pytestmark = pytest.mark.slow


playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need: pip install playwright")
OFFICE = Path(__file__).parents[2] / "examples" / "office"


def hookline(folder, *args, **options):
    command = [sys.executable, "-m", "hookline", *args]
    return subprocess.run(command, cwd=folder, text=True, capture_output=True, check=True, **options).stdout


@pytest.fixture
def office(tmp_path):
    folder = tmp_path / "office"
    shutil.copytree(OFFICE, folder, ignore=shutil.ignore_patterns("data", "__pycache__"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = folder / "hookline.toml"
    settings.write_text(settings.read_text().replace("8765", str(port)))
    hookline(folder, "tickets", "create", "Shelve the new books", "--criterion", "the summary says how many")
    command = [sys.executable, "-m", "hookline", "gateway"]
    with subprocess.Popen(command, cwd=folder, text=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as gateway:
        for line in gateway.stderr or ():
            if "listening" in line:
                break
        yield folder, f"http://127.0.0.1:{port}"
        os.kill(gateway.pid, signal.SIGINT)
        gateway.communicate()
    assert gateway.returncode == 0


@needs_chromium
def test_a_newcomer_sees_a_ticket_rejected_and_revised_and_another_personality(office):
    folder, url = office
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.goto(url)

        def say(text, *expected):
            page.get_by_role("textbox").fill(text)
            page.keyboard.press("Enter")
            for words in expected:
                page.get_by_text(words).first.wait_for(timeout=0)  # pytest's own timeout is the limit

        say("Start T-1", "It is yours now")
        say("Complete T-1: the books are on the shelf.", "T-1 is NOT done", "the summary does not say how many")
        say("Complete T-1: 12 books are on the shelf.", "T-1 is done.")
        say("/personality poet", "Switched to The poet")
        browser.close()
    shown = hookline(folder, "tickets", "show", "T-1")
    assert re.findall(r"rejected|accepted", shown.partition("History")[2]) == ["rejected", "accepted"]
