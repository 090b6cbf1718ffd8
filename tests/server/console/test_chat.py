"""The page of the console to talk with an agent."""

import asyncio
import base64
import json
from urllib.parse import parse_qs, urlsplit

import pytest

from hookline import Agent, ScriptedModel
from hookline.models import ModelResponse
from hookline.stores.run_queries import Conversation, conversations
from hookline.teams import Roster

from .asking import cleaner, deleted, waiting_call
from .rig import console, echo_agent

PATH = "/console/chat"
RIGHTS = ("read", "run", "approve")
JSON = {"accept": "application/json"}


async def say(browser, text, session="", agent="", **fields):
    """Send the form of the page. Return the session of the conversation, and the answer."""
    answer = await browser.post(PATH, data={"text": text, "session": session, "agent": agent, **fields})
    assert answer.status_code == 303, answer.text
    return parse_qs(urlsplit(answer.headers["location"]).query)["session"][0], answer


async def answered(browser, session, *texts):
    """Wait until a page of the conversation shows these texts, and return it."""
    page = ""
    while not all(text in page for text in texts):
        await asyncio.sleep(0.01)
        page = (await browser.get(PATH, params={"session": session})).text
    return page


async def test_a_message_begins_a_conversation_that_goes_on(tmp_path):
    model = ScriptedModel([lambda request: f"I know {len(request.messages)} messages"], loop=True)
    async with console(tmp_path, Agent("bot", llm=model)) as made, made.logged_in(*RIGHTS) as browser:
        assert "No conversations yet" in (await browser.get(PATH)).text
        session, _ = await say(browser, "hello <b>you</b>")
        page = await answered(browser, session, "I know 1 messages")
        assert "hello &lt;b&gt;you&lt;/b&gt;" in page
        assert (await say(browser, "and now?", session))[0] == session
        page = await answered(browser, session, "I know 3 messages")
        assert page.index("I know 1") < page.index("and now?") < page.index("I know 3")
        assert page.count('aria-current="page"><b>') + page.count('aria-current="page">\n') == 1  # in the list


async def test_a_script_gets_the_sections_of_the_conversation(tmp_path):
    async with console(tmp_path) as made, made.logged_in(*RIGHTS) as browser:
        session, _ = await say(browser, "one")
        answer = await browser.post(PATH, data={"text": "two", "session": session}, headers=JSON)
        assert answer.status_code == 200
        assert len([id for id in answer.json() if id.startswith("chat-run")]) == 2
        answer = await browser.post(PATH, data={"text": " ", "session": session}, headers=JSON)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == "write a message first"


async def test_files_reach_the_model(tmp_path):
    seen = []

    def look(request):
        seen.extend(request.messages[-1].attachments)
        return "A list."

    agent = Agent("bot", llm=ScriptedModel([look]))
    async with console(tmp_path, agent) as made, made.logged_in(*RIGHTS) as browser:
        data = base64.b64encode(b"milk, bread").decode()
        session, _ = await say(browser, "what is this?", **{"file.0": data, "file_name.0": "<b>list.txt"})
        await answered(browser, session, "A list.", "&lt;b&gt;list.txt")
        answer = await browser.post(PATH, data={"text": "x", "file.0": "%%", "file_name.0": "a"}, headers=JSON)
        assert answer.status_code == 400
    assert [each.name for each in seen] == ["<b>list.txt"]


async def test_a_waiting_call_is_decided_in_the_conversation(tmp_path):
    deleted.clear()
    async with console(tmp_path, cleaner()) as made, made.logged_in(*RIGHTS) as browser:
        session, _ = await say(browser, "a.txt")
        page = await answered(browser, session, "wants to call", "waits for approval</span>")
        assert 'data-into="chat-asks"' in page
        (row,) = made.server.service.approvals.rows(status="pending")
        data = {"decision": "approve", "digest": row.digest, "next": f"{PATH}?session={session}"}
        answer = await browser.post(f"/console/approvals/{row.id}", data=data)
        assert answer.headers["location"] == data["next"]
        await answered(browser, session, "a.txt is gone", ">approved</span>")
        assert deleted == ["a.txt"]


async def test_a_blocked_call_is_a_card_with_its_verdict(tmp_path):
    async with console(tmp_path, cleaner()) as made, made.logged_in(*RIGHTS) as browser:
        session, _ = await say(browser, "/etc/passwd")
        page = await answered(browser, session, "1 blocked")
        assert '<span class="pill red">blocked</span> <b>not_outside</b>' in page


async def test_words_appear_while_the_model_writes(tmp_path):
    go = asyncio.Event()

    class Slow(ScriptedModel):
        async def stream(self, request):
            yield "Once upon"
            await go.wait()
            yield " a time."
            yield ModelResponse("Once upon a time.")

    agent = Agent("bot", llm=Slow())
    async with console(tmp_path, agent) as made, made.logged_in(*RIGHTS) as browser:
        session, _ = await say(browser, "a tale")
        page = await answered(browser, session, "Once upon")
        assert "a time" not in page
        assert "is working" in page
        async with browser.stream("GET", f"{PATH}/live", params={"session": session}) as stream:
            sections = (json.loads(line[6:]) async for line in stream.aiter_lines() if line.startswith("data: "))
            await anext(sections)
            go.set()
            while "Once upon a time." not in "".join((await anext(sections)).values()):
                pass


async def test_every_personality_can_be_chosen_and_speaks_for_itself(tmp_path):
    model = ScriptedModel([lambda request: f"as {request.messages[0].content}"], loop=True)
    for name in ("ada", "ben"):
        (tmp_path / "people").mkdir(exist_ok=True)
        (tmp_path / "people" / f"{name}.toml").write_text(f'instructions = "I am {name}."')
    roster = Roster(Agent("bot", llm=model), tmp_path / "people", first="ada")
    async with console(tmp_path, roster) as made, made.logged_in(*RIGHTS) as browser:
        page = (await browser.get(PATH)).text
        assert "agent=ada" in page
        assert "agent=ben" in page
        _, answer = await say(browser, "who are you?", agent="ben")
        assert "agent=ben" in answer.headers["location"]


async def test_nobody_reads_or_continues_the_conversation_of_somebody_else(tmp_path):
    async with console(tmp_path) as made, made.logged_in(*RIGHTS) as ann, made.logged_in(*RIGHTS, "admin") as admin:
        session, _ = await say(ann, "my secret")
        await answered(ann, session, "echo my secret")
        page = (await admin.get(PATH, params={"session": session})).text
        assert "my secret" not in page
        async with made.logged_in("read") as reader:
            assert (await reader.post(PATH, data={"text": "x", "session": session})).status_code == 403
            assert "<textarea" not in (await reader.get(PATH)).text


async def test_an_unknown_agent_is_an_error_page(tmp_path):
    async with console(tmp_path) as made, made.logged_in(*RIGHTS) as browser:
        answer = await browser.get(PATH, params={"agent": "nobody"})
        assert answer.status_code == 404
        assert "There is no agent" in answer.text


async def test_the_list_names_the_conversations_of_this_page_with_their_first_task(tmp_path):
    async with console(tmp_path, echo_agent()) as made, made.logged_in(*RIGHTS) as browser:
        await browser.post("/runs", json={"task": "through the API", "session": "s"})
        first, _ = await say(browser, "one")
        await answered(browser, first, "echo one")
        second, _ = await say(browser, "two")
        await answered(browser, second, "echo two")
        await say(browser, "three", first)
        await answered(browser, first, "echo three")
        owner = made.keys.keys()[0].id
        found = conversations(made.server.service.store, owner, "console", 10)
        assert [(each.session, each.task) for each in found] == [(first, "one"), (second, "two")]
        assert all(isinstance(each, Conversation) for each in found)


@pytest.mark.parametrize("path", [PATH, f"{PATH}/live"])
async def test_a_caller_who_may_not_read_sees_no_conversation(tmp_path, path):
    async with console(tmp_path, cleaner()) as made, made.logged_in("run", "approve") as browser:
        await waiting_call(made, browser)
        assert (await browser.get(path)).status_code == 403
