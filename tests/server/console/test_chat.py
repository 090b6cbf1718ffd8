"""The page of the console to talk with an agent: what its server accepts and tells. The page itself: tests/chat."""

import asyncio
import base64
import html
import json
import re
from contextlib import asynccontextmanager
from urllib.parse import quote

import httpx
import pytest

from hookline import Agent, ScriptedModel
from hookline.models import ModelResponse
from hookline.server.console.chat import NOT_SHOWN
from hookline.stores.run_queries import Conversation, conversations
from hookline.teams import Roster

from .asking import cleaner, deleted, waiting_call
from .own_process import own_process
from .rig import console, echo_agent

PATH = "/console/chat"
RIGHTS = ("read", "run", "approve")
JSON = "application/json"


def id_of(number):
    return f"message-number-{number:08}"


async def post(browser, path, session, agent="", **fields):
    """Post what the page posts."""
    headers = {"X-Chat": quote(session), "accept": JSON}
    return await browser.post(f"{PATH}/{path}", params={"agent": agent}, json=fields, headers=headers)


async def say(browser, text, session="talk", agent="", number=None, **fields):
    """Send a message, and return its id."""
    say.sent = getattr(say, "sent", 0) + 1
    id = id_of(number or say.sent)
    answer = await post(browser, "messages", session, agent, id=id, text=text, **fields)
    assert answer.status_code == 204, answer.text
    return id


def settings_of(page):
    return json.loads(html.unescape(re.search(r'data-settings="([^"]*)"', page)[1]))


class Parts(dict):
    """The parts of a conversation, as a page has them."""

    @property
    def messages(self):
        found = (each for name, each in self.items() if name.startswith("message:"))
        return sorted(found, key=lambda each: each["seq"])

    @property
    def texts(self):
        return [each.get("text", "") for each in self.messages if "steps" not in each]

    @property
    def steps(self):
        return [step for each in self.messages for step in each.get("steps", ())]


@asynccontextmanager
async def opened(browser, session="talk", agent=""):
    """Open the stream of a conversation. Yield a function that waits until its parts fulfil a condition."""
    headers = {"X-Chat": quote(session), "accept": JSON}
    async with browser.stream("GET", f"{PATH}/stream", params={"agent": agent}, headers=headers) as stream:
        stream.raise_for_status()
        events = (json.loads(line[6:]) async for line in stream.aiter_lines() if line.startswith("data: "))
        parts = Parts()

        async def until(condition):
            async with asyncio.timeout(60):
                while "ready" not in parts or not condition(parts):
                    parts.update(await anext(events))
            return parts

        yield until


async def answered(browser, session, *texts, agent=""):
    """Wait until a conversation has these messages, and return its parts."""
    async with opened(browser, session, agent) as until:
        return await until(lambda parts: all(any(text in each for each in parts.texts) for text in texts))


async def test_a_message_begins_a_conversation_that_goes_on(tmp_path):
    model = ScriptedModel([lambda request: f"I know {len(request.messages)} messages"], loop=True)
    async with console(tmp_path, Agent("bot", llm=model)) as made, made.logged_in(*RIGHTS) as browser:
        async with opened(browser) as until:
            assert (await until(lambda parts: True))["chats"] == {}
            first = await say(browser, "hello <b>you</b>")
            parts = await until(lambda parts: "I know 1 messages" in parts.texts)
            assert [each["id"] for each in parts.messages if each["side"] == "in"] == [first]
            await say(browser, "and now?")
            parts = await until(lambda parts: "I know 3 messages" in parts.texts)
            assert parts.texts == ["hello <b>you</b>", "I know 1 messages", "and now?", "I know 3 messages"]
        page = (await browser.get(PATH, params={"session": "talk"})).text
        assert "<b>you" not in page
        now = Parts(settings_of(page)["partsNow"])  # the page shows it before it has a connection
        assert now.texts == parts.texts
        assert [each["id"] for each in now["chats"]["chats"]] == ["talk"]


@pytest.mark.sqlite  # on PostgreSQL a process has a lease
async def test_a_call_of_a_run_whose_process_was_killed_waits_for_nobody(tmp_path):
    async with own_process(tmp_path, "cleaner") as server:
        headers = {"origin": server.url, "sec-fetch-site": "same-origin"}
        async with httpx.AsyncClient(base_url=server.url, headers=headers, trust_env=False, timeout=60) as browser:
            async with opened(browser) as until:
                await say(browser, "a.txt")
                await until(lambda parts: any(step["state"] == "waits for approval" for step in parts.steps))
            while (await browser.get("/runs")).json()["runs"][0]["status"] != "waiting":  # this is stored then
                await asyncio.sleep(0.01)
    async with console(tmp_path, cleaner()) as made, made.browser() as browser, opened(browser) as until:
        parts = await until(lambda parts: parts.steps)
        assert [step["state"] for step in parts.steps] == ["not run"]


async def test_a_message_that_is_sent_again_is_answered_once(tmp_path):
    async with console(tmp_path) as made, made.logged_in(*RIGHTS) as browser:
        for _ in range(3):
            await say(browser, "one", number=900)
        parts = await answered(browser, "talk", "echo one")
        assert parts.texts == ["one", "echo one"]
        other = await post(browser, "messages", "talk", id=id_of(900), text="two")
        assert other.status_code == 409


async def test_an_invalid_message_is_refused_with_a_reason(tmp_path):
    async with console(tmp_path) as made, made.logged_in(*RIGHTS) as browser:
        for fields, why in (
            ({"id": id_of(1), "text": " "}, "write a message first"),
            ({"id": id_of(1), "text": "x" * 100_001}, "at most 100,000 characters"),
            ({"id": "short", "text": "x"}, "20 to 64 letters"),
            ({"text": "x"}, "the field id is missing"),
            ({"id": id_of(1), "text": "x", "files": [{"name": "a", "data": "%%"}]}, "a: "),
        ):
            answer = await post(browser, "messages", "talk", **fields)
            assert answer.status_code == 422, fields
            assert why in answer.json()["error"]["message"]
        assert (await post(browser, "messages", "", id=id_of(1), text="x")).status_code == 400


async def test_files_reach_the_model(tmp_path):
    seen = []

    def look(request):
        seen.extend(request.messages[-1].attachments)
        return "A list."

    agent = Agent("bot", llm=ScriptedModel([look]))
    async with console(tmp_path, agent) as made, made.logged_in(*RIGHTS) as browser:
        data = base64.b64encode(b"milk, bread").decode()
        await say(browser, "what is this?", files=[{"name": "<b>list.txt", "data": data}])
        parts = await answered(browser, "talk", "A list.")
        assert parts.texts[0] == "[<b>list.txt] what is this?"
    assert [each.name for each in seen] == ["<b>list.txt"]


async def test_a_waiting_call_is_decided_in_the_conversation(tmp_path):
    deleted.clear()
    async with console(tmp_path, cleaner()) as made, made.logged_in(*RIGHTS) as browser, opened(browser) as until:
        await say(browser, "notes/a.txt")
        parts = await until(lambda parts: parts["asked"].get("open"))
        (prompt,) = parts["asked"]["open"]
        assert (prompt["agent"], prompt["tool"], json.loads(prompt["arguments"])) == (
            "cleaner",
            "delete",
            {"path": "notes/a.txt"},
        )
        assert prompt["questions"] == ["careful asks: May this file go? (files matter)"]
        assert (prompt["remember"], prompt["pattern"]) == (["once", "session", "always"], {"path": "notes/a.txt"})
        assert parts.steps[0]["state"] == "waits for approval"
        decision = {"id": id_of(1), "key": prompt["key"], "decision": "approve"}
        other = await post(browser, "decisions", "talk", **decision, digest="0" * 64)
        assert other.status_code == 409
        assert deleted == []
        answer = await post(browser, "decisions", "talk", **decision, digest=prompt["digest"])
        assert answer.status_code == 204
        parts = await until(lambda parts: "notes/a.txt is gone" in parts.texts)
        assert "open" not in parts["asked"]
        assert [each["word"] for each in parts.steps[0]["verdicts"]] == ["asked", "approved"]
        assert deleted == ["notes/a.txt"]


async def test_a_call_is_edited_or_denied_with_a_reason(tmp_path):
    deleted.clear()
    async with console(tmp_path, cleaner()) as made, made.logged_in(*RIGHTS) as browser, opened(browser) as until:
        for fields, reply in (
            ({"decision": "edit", "arguments": '{"path": "b.txt"}'}, "b.txt is gone"),
            ({"decision": "deny", "message": "keep it"}, "keep it"),
        ):
            await say(browser, "a.txt")
            (prompt,) = (await until(lambda parts: parts["asked"].get("open")))["asked"]["open"]
            answer = await post(
                browser, "decisions", "talk", id=id_of(1), key=prompt["key"], digest=prompt["digest"], **fields
            )
            assert answer.status_code == 204, answer.text
            await until(lambda parts, reply=reply: any(reply in each for each in parts.texts))
            await until(lambda parts: "open" not in parts["asked"])
    assert deleted == ["b.txt"]


async def test_a_blocked_call_is_a_step_with_its_verdict(tmp_path):
    async with console(tmp_path, cleaner()) as made, made.logged_in(*RIGHTS) as browser:
        await say(browser, "/etc/passwd")
        (step,) = (await answered(browser, "talk", "outside")).steps
        assert (step["state"], step["tone"]) == ("blocked", "red")
        assert step["verdicts"] == [{"word": "blocked", "tone": "red", "gate": "blocked", "hook": "not_outside"}]


async def test_words_appear_while_the_model_writes_and_the_run_can_be_stopped(tmp_path):
    class Slow(ScriptedModel):
        async def stream(self, request):
            yield "Once upon"
            await asyncio.Event().wait()
            yield ModelResponse("Once upon a time.")

    agent = Agent("bot", llm=Slow())
    async with console(tmp_path, agent) as made, made.logged_in(*RIGHTS) as browser, opened(browser) as until:
        id = await say(browser, "a tale")
        parts = await until(lambda parts: parts["draft"].get("text") == "Once upon")
        assert parts["work"] == {"answering": id}
        assert (await post(browser, "stop", "talk", id=id_of(1))).status_code == 204
        parts = await until(lambda parts: not parts["work"])
        assert parts["draft"] == {}
        assert any(each.get("note", "").startswith("cancelled") for each in parts.messages)


async def test_a_run_that_failed_says_why(tmp_path):
    def broken(request):
        raise RuntimeError("the model is down")

    agent = Agent("bot", llm=ScriptedModel([broken], loop=True))
    async with console(tmp_path, agent) as made, made.logged_in(*RIGHTS) as browser, opened(browser) as until:
        await say(browser, "hello")
        parts = await until(lambda parts: any(each.get("problem") for each in parts.messages))
        assert "failed: RuntimeError: the model is down" in [each.get("problem") for each in parts.messages]


async def test_every_personality_can_be_chosen_and_speaks_for_itself(tmp_path):
    model = ScriptedModel([lambda request: f"as {request.messages[0].content}"], loop=True)
    (tmp_path / "people").mkdir()
    (tmp_path / "people" / "ada.toml").write_text('instructions = "I am ada."\nsuggestions = ["Ask ada"]')
    (tmp_path / "people" / "ben.toml").write_text('instructions = "I am ben."\ndescription = "Writes"')
    roster = Roster(Agent("bot", llm=model, suggestions=["Ask anyone"]), tmp_path / "people", first="ada")
    async with console(tmp_path, roster) as made, made.logged_in(*RIGHTS) as browser:
        settings = settings_of((await browser.get(PATH)).text)
        assert settings["speaker"] == "ada"
        assert [(each["id"], each["description"], each["suggestions"]) for each in settings["speakers"]] == [
            ("ada", "", ["Ask ada"]),
            ("ben", "Writes", ["Ask anyone"]),
        ]
        await say(browser, "who are you?", agent="ben")
        await answered(browser, "talk", "as I am ben.", agent="ben")


async def test_nobody_reads_or_continues_the_conversation_of_somebody_else(tmp_path):
    async with console(tmp_path, cleaner()) as made, made.logged_in(*RIGHTS) as ann:
        await say(ann, "/my secret")
        await answered(ann, "talk", "outside")
        await say(ann, "a.txt")
        async with opened(ann) as until:
            (prompt,) = (await until(lambda parts: parts["asked"].get("open")))["asked"]["open"]
        async with made.logged_in(*RIGHTS, "admin") as admin, opened(admin) as until:
            parts = await until(lambda parts: True)
            assert parts.texts == []
            assert "my secret" not in str(parts)
            assert "open" not in parts["asked"]
        async with made.logged_in("run", "approve") as ben:
            answer = await post(
                ben, "decisions", "talk", id=id_of(1), key=prompt["key"], decision="deny", digest=prompt["digest"]
            )
            assert answer.status_code == 404


async def test_what_a_caller_may_not_do_is_refused_and_not_offered(tmp_path):
    async with console(tmp_path) as made, made.logged_in("read") as reader:
        assert settings_of((await reader.get(PATH)).text)["mayWrite"] is False
        for path in ("messages", "stop"):
            assert (await post(reader, path, "talk", id=id_of(1), text="x")).status_code == 403
        answer = await post(reader, "decisions", "talk", id=id_of(1), key="x", decision="deny")
        assert answer.status_code == 403


async def test_an_unknown_agent_is_an_error_page(tmp_path):
    async with console(tmp_path) as made, made.logged_in(*RIGHTS) as browser:
        answer = await browser.get(PATH, params={"agent": "nobody"})
        assert answer.status_code == 404
        assert "There is no agent" in answer.text


async def test_the_list_names_the_conversations_of_this_page_with_their_first_task(tmp_path):
    async with console(tmp_path, echo_agent()) as made, made.logged_in(*RIGHTS) as browser:
        await browser.post("/runs", json={"task": "through the API", "session": "s"})
        for text, session in (("one", "first ☂"), ("two", "second"), ("three", "first ☂")):
            await say(browser, text, session)
            await answered(browser, session, f"echo {text}")
        owner = made.keys.keys()[0].id
        found = conversations(made.server.service.store, owner, "console", 10)
        assert [(each.session, each.task) for each in found] == [("first ☂", "one"), ("second", "two")]
        assert all(isinstance(each, Conversation) for each in found)
        async with opened(browser, "second") as until:
            listed = (await until(lambda parts: True))["chats"]["chats"]
            assert [(each["id"], each["title"]) for each in listed] == [("first ☂", "one"), ("second", "two")]


async def test_what_cannot_be_shown_says_so_and_the_rest_is_shown(tmp_path, monkeypatch, caplog):
    def broken(*args, **options):
        raise ValueError("a bug")

    async def shown(browser):
        return Parts(settings_of((await browser.get(PATH, params={"session": "talk"})).text)["partsNow"])

    async with console(tmp_path) as made, made.logged_in(*RIGHTS) as browser:
        await say(browser, "one")
        await answered(browser, "talk", "echo one")
        with monkeypatch.context() as patch:
            patch.setattr("hookline.server.console.chat.add_event", broken)
            parts = await shown(browser)
            assert [each["problem"] for each in parts.messages] == [NOT_SHOWN]
            assert [each["title"] for each in parts["chats"]["chats"]] == ["one"]
        with monkeypatch.context() as patch:
            patch.setattr("hookline.server.console.chat.conversations", broken)
            parts = await shown(browser)
            assert parts["chats"]["problem"] == NOT_SHOWN
            assert parts.texts == ["one", "echo one"]
    assert caplog.text.count("ValueError: a bug") >= 2  # also open streams render the page


@pytest.mark.parametrize("path", [PATH, f"{PATH}/stream"])
async def test_a_caller_who_may_not_read_sees_no_conversation(tmp_path, path):
    async with console(tmp_path, cleaner()) as made, made.logged_in("run", "approve") as browser:
        await waiting_call(made, browser)
        assert (await browser.get(path)).status_code == 403
