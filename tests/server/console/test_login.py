"""Browsers that log in to the console."""

import json

import httpx
import pytest

from hookline.stores.keys import OPERATOR

from .asking import field
from .rig import console

READ = ("read",)


async def test_without_keys_the_console_is_open_on_this_machine(tmp_path):
    async with console(tmp_path) as made, made.browser() as browser:
        page = await browser.get("/")
        assert page.status_code == 200
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert page.headers["referrer-policy"] == "same-origin"  # a browser would send forms without their origin


async def test_a_browser_without_a_login_is_sent_to_the_page_to_log_in_and_back(tmp_path):
    async with console(tmp_path) as made:
        _, secret = made.keys.add("ann", READ)
        async with made.browser() as browser:
            answer = await browser.get("/?x=1")
            assert (answer.status_code, answer.headers["location"]) == (303, "/console/login?next=/%3Fx%3D1")
            page = await browser.get(answer.headers["location"])
            assert 'name="next" value="/?x=1"' in page.text
            answer = await browser.post("/console/login", data={"key": secret, "next": "/?x=1"})
            assert (answer.status_code, answer.headers["location"]) == (303, "/?x=1")
            page = await browser.get("/")
            assert page.status_code == 200
            assert ">ann</span>" in page.text


async def test_the_cookie_cannot_be_read_by_scripts_or_sent_by_other_sites(tmp_path):
    async with console(tmp_path) as made:
        _, secret = made.keys.add("ann", READ)
        async with made.browser() as browser:
            answer = await browser.post("/console/login", data={"key": secret})
            cookie = answer.headers["set-cookie"].lower()
            assert "httponly" in cookie
            assert "samesite=strict" in cookie
            assert secret not in cookie


async def test_a_wrong_key_does_not_log_in_and_many_of_them_are_refused(tmp_path):
    async with console(tmp_path) as made:
        made.keys.add("ann", READ)
        async with made.browser() as browser:
            answer = await browser.post("/console/login", data={"key": "hl_nothing_x"})
            assert answer.status_code == 401
            assert "This key is not valid." in answer.text
            assert "set-cookie" not in answer.headers
            statuses = {
                (await browser.post("/console/login", data={"key": f"hl_x_{n}"})).status_code for n in range(30)
            }
            assert 429 in statuses


@pytest.mark.parametrize("wanted", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"])
async def test_a_login_leads_to_pages_of_this_server_only(tmp_path, wanted):
    async with console(tmp_path) as made:
        _, secret = made.keys.add("ann", READ)
        async with made.browser() as browser:
            answer = await browser.post("/console/login", data={"key": secret, "next": wanted})
            assert answer.headers["location"] == "/"


async def test_a_link_logs_in_once_with_all_rights(tmp_path):
    async with console(tmp_path) as made:
        made.keys.add("ann", READ)
        link = f"/console/login/{made.keys.add_login(OPERATOR, 60, once=True)}"
        async with made.browser() as browser, made.browser() as other:
            assert (await browser.get(link)).status_code == 200  # a preview does not use it up
            assert (await browser.post(link)).status_code == 303
            assert (await browser.get("/openapi.json")).status_code == 200
            assert (await other.post(link)).status_code == 410
            assert (await other.get("/openapi.json")).status_code == 401


@pytest.mark.parametrize("headers", [{"origin": "https://listed.example.com"}, {"sec-fetch-site": "cross-site"}, {}])
async def test_a_page_of_another_server_cannot_log_a_browser_in(tmp_path, headers):
    async with console(tmp_path, origins=["https://listed.example.com"]) as made:
        _, secret = made.keys.add("mallory", ["read"])
        link = f"/console/login/{made.keys.add_login(OPERATOR, 60, once=True)}"
        async with httpx.AsyncClient(base_url=made.url, trust_env=False, timeout=60, headers=headers) as other:
            for answer in (await other.post("/console/login", data={"key": secret}), await other.post(link)):
                assert (answer.status_code, answer.headers.get("set-cookie")) == (403, None)
        async with made.browser() as browser:
            assert (await browser.post(link)).status_code == 303  # it was not used up


async def test_the_secret_of_a_link_is_no_login(tmp_path):
    async with console(tmp_path) as made:
        made.keys.add("ann", READ)
        secret = made.keys.add_login(OPERATOR, 60, once=True)
        async with made.browser(cookies={"hookline_login": secret}) as browser:
            assert (await browser.get("/runs")).status_code == 401


async def test_a_login_ends_with_its_key_and_with_logging_out(tmp_path):
    async with console(tmp_path) as made:
        row, secret = made.keys.add("ann", READ)
        async with made.browser() as first, made.browser() as second:
            for browser in (first, second):
                await browser.post("/console/login", data={"key": secret})
                assert (await browser.get("/runs")).status_code == 200
            cookie = first.cookies["hookline_login"]
            await first.post("/console/logout")
            assert (await first.get("/runs", headers={"cookie": f"hookline_login={cookie}"})).status_code == 401
            assert (await second.get("/runs")).status_code == 200
            made.keys.revoke(row.id)
            assert (await second.get("/runs")).status_code == 401


async def test_a_login_has_the_rights_of_its_key(tmp_path):
    async with console(tmp_path) as made, made.logged_in("read") as browser:
        answer = await browser.post("/runs", json={"task": "x"})
        assert answer.status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "https://x.y"},
        {"origin": "https://listed.example.com"},  # also a page that may send requests, with a key of its own
    ],
)
async def test_a_cookie_alone_does_not_change_anything(tmp_path, headers):
    async with console(tmp_path, origins=["https://listed.example.com"]) as made:
        async with made.logged_in("read", "run") as browser:
            cookie = {"cookie": f"hookline_login={browser.cookies['hookline_login']}"}
        async with httpx.AsyncClient(base_url=made.url, trust_env=False, timeout=60) as other:
            answer = await other.post("/runs", json={"task": "x"}, headers={**cookie, **headers})
            assert answer.status_code == 403
            assert (await other.get("/runs", headers=cookie)).json()["runs"] == []


@pytest.mark.parametrize("end", ["revoked", "logged out"])
async def test_the_stream_of_an_open_page_ends_with_its_login(tmp_path, end):
    async with console(tmp_path) as made, made.logged_in("read") as browser:
        async with browser.stream("GET", "/console/now") as stream:
            assert stream.status_code == 200
            if end == "revoked":
                made.keys.revoke("key 0")
            else:
                made.keys.end_login(browser.cookies["hookline_login"])
            with pytest.raises(httpx.RemoteProtocolError):
                async for _ in stream.aiter_bytes():
                    pass
        assert (await browser.get("/console/now")).headers["location"].startswith("/console/login")


async def test_every_login_right_or_wrong_is_in_the_audit_log_without_its_secret(tmp_path):
    audit = tmp_path / "audit.jsonl"
    async with console(tmp_path, audit=audit) as made:
        key, secret = made.keys.add("ann", READ)
        link = made.keys.add_login(OPERATOR, 600, once=True)
        async with made.browser() as browser:
            assert (await browser.post("/console/login", data={"key": secret})).status_code == 303
            assert (await browser.post("/console/login", data={"key": "hl_wrong_key"})).status_code == 401
            made.keys.revoke("ann")
            assert (await browser.post("/console/login", data={"key": secret})).status_code == 401
            assert (await browser.post(f"/console/login/{link}")).status_code == 303
            assert (await browser.post(f"/console/login/{link}")).status_code == 410
    text = audit.read_text()
    found = map(json.loads, text.splitlines())
    records = [each for each in found if each.get("route", "").startswith("/console/login")]
    assert [(each["decision"], each["why"], each["caller"], each["route"]) for each in records] == [
        ("granted", "", key.id, "/console/login"),
        ("denied", "no such key", "", "/console/login"),
        ("denied", "no such key", "", "/console/login"),
        ("granted", "", "local", "/console/login/{secret}"),
        ("denied", "no such link", "", "/console/login/{secret}"),
    ]
    assert {each["address"] for each in records} == {"127.0.0.1"}
    assert all(each["correlation_id"] for each in records)
    assert secret not in text
    assert link not in text


async def test_wrong_logins_of_one_address_cannot_fill_the_audit_log(tmp_path):
    audit = tmp_path / "audit.jsonl"
    async with console(tmp_path, audit=audit, rate=1, burst=3) as made:
        made.keys.add("ann", READ)
        async with made.browser() as browser:
            for _ in range(30):
                await browser.post("/console/login", data={"key": "hl_wrong_key"})
    assert audit.read_text().count('"decision":"denied"') <= 4


@pytest.mark.parametrize(
    "path", ["/", "/console", "/console/runs?status=failed", "/console/runs/run_1", "/console/nothing"]
)
async def test_a_browser_that_is_logged_out_gets_the_login_and_then_the_page_that_it_wanted(tmp_path, path):
    async with console(tmp_path) as made:
        _, secret = made.keys.add("ann", ["read"])
        async with made.browser() as browser:
            answer = await browser.get(path, headers={"accept": "text/html"})
            assert answer.status_code == 303
            login = await browser.get(answer.headers["location"])
            assert "text/html" in login.headers["content-type"]
            answer = await browser.post("/console/login", data={"key": secret, "next": field(login.text, "next")})
            assert answer.headers["location"] == path


async def test_a_form_with_very_many_fields_is_rejected(tmp_path):
    async with console(tmp_path) as made, made.logged_in("read", "run", "approve") as browser:
        for path, status in (("/console/approvals/appr_0", 404),):
            headers = {"content-type": "application/x-www-form-urlencoded"}
            for number, expected in ((1000, status), (1001, 400)):
                body = "&".join([*["a=b"] * (number - 2), "text=x", "agent=nobody"])
                answer = await browser.post(path, content=body, headers=headers)
                assert answer.status_code == expected, (path, number, answer.text)
