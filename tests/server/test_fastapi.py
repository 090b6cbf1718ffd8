"""The app of the FastAPI guide, as its reader runs it: a process of uvicorn, real clients, a real browser."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from hookline.stores.runs import RunStore

from ..waiting import block_until

pytest.importorskip("fastapi", reason="the guide needs: pip install fastapi")

ROOT = Path(__file__).parents[2]
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
GUIDE = (ROOT / "docs/guides/fastapi.md").read_text()
APP = re.search(r"Save it as `app.py`:\n\n```python\n(.*?)```", GUIDE, re.DOTALL)[1]


@contextmanager
def running(folder):
    """Run the app of the guide and return its address."""
    (folder / "app.py").write_text(APP)
    command = [sys.executable, "-m", "uvicorn", "app:app", "--port", "0", "--timeout-graceful-shutdown", "5"]
    log = folder / "log.txt"
    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out)
    try:
        block_until(lambda: process.poll() is not None or "Uvicorn running on" in log.read_text())
        found = re.search(r"Uvicorn running on (\S+)", log.read_text())
        assert found, log.read_text()
        yield found[1]
        process.send_signal(signal.SIGTERM)
        block_until(lambda: process.poll() is not None)
        assert "Application shutdown complete" in log.read_text()
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()
        process.wait()


def test_the_app_serves_its_own_users_and_streams_to_them(tmp_path):
    with (
        running(tmp_path) as url,
        httpx.Client(base_url=url, follow_redirects=True, trust_env=False, timeout=60) as client,
    ):
        assert client.get("/agents/runs").status_code == 401
        assert client.get("/login/mallory").status_code == 403
        assert "<form>" in client.get("/login/ann").text
        made = client.post("/agents/runs", json={"task": "Please refund 20"})
        with client.stream("GET", f"{made.headers['location']}/events") as stream:
            events = [json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: ")]
        text = "".join(event["text"] for event in events if event["type"] == "text_delta")
        assert (text, events[-1]["status"]) == ("Refunded 20.00 for order 7.", "completed")
        assert client.get("/agents/metrics").status_code == 403
        servers = client.get("/agents/openapi.json").json()["servers"]
        assert servers == [{"url": "/agents"}]
    store = RunStore(tmp_path / "runs.db")
    assert store.find(made.json()["id"]).status == "completed"
    store.close()


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="the browser test needs Chromium: apt install chromium, or set CHROMIUM")
def test_a_browser_logs_in_sends_a_task_and_shows_the_streamed_reply(tmp_path):
    playwright = pytest.importorskip("playwright.sync_api", reason="the browser test needs: pip install playwright")
    with running(tmp_path) as url, playwright.sync_playwright() as driver:
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=options)
        page = browser.new_page()
        problems = []
        page.on("pageerror", lambda problem: problems.append(str(problem)))
        page.on("console", lambda message: problems.append(message.text))
        page.goto(f"{url}/login/ann")
        for task, answer in (
            ("Please refund 20", "Refunded 20.00 for order 7."),
            ("Please refund 500", "Refunds above 100 need a person."),
        ):
            page.fill("input", task)
            page.click("button")
            last = page.locator("#log p").last
            playwright.expect(last).to_have_attribute("data-status", "completed")
            playwright.expect(last).to_have_text(answer)
        page.context.clear_cookies()
        page.click("button")
        refused = page.locator("#log p").nth(2)
        playwright.expect(refused).to_have_text("this application does not know the caller: log in first")
        browser.close()
    assert [each for each in problems if "401" not in each] == []
