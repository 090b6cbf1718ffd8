"""Durable gateways in processes that are killed: each effect is made once, and each message is answered once."""

import re
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from itertools import groupby
from pathlib import Path

import pytest

from hookline.stores.approvals import ApprovalStore
from tests.environment import with_source

from ..lines import add_line, read_lines
from ..postgres_cluster import MISSING, Cluster
from ..waiting import block_until
from .durable_worker import STEPS

pytestmark = pytest.mark.slow

WORKER = Path(__file__).with_name("durable_worker.py")
MAX_CONCURRENT = 8


class Scene:
    """The files of a platform, and gateways on a file or on a database."""

    def __init__(self, folder, url):
        self.folder, self.url = folder, url
        self.processes = []

    def start(self, tool_seconds=0.02, instructions="", poll_seconds=0.1):
        """Start a gateway and wait until it receives messages."""
        before = len(self.lines("up"))
        options = [str(tool_seconds), instructions, str(poll_seconds)]
        process = subprocess.Popen(
            [sys.executable, str(WORKER), str(self.folder), self.url, *options], env=with_source()
        )
        self.processes.append(process)
        block_until(lambda: len(self.lines("up")) > before or process.poll() is not None)
        assert process.poll() is None
        return process

    def kill(self, process):
        process.send_signal(signal.SIGKILL)
        process.wait()

    def say(self, chat, id, text):
        add_line(self.folder / "said", chat, id, text)

    def lines(self, name):
        return read_lines(self.folder / name)

    def ended(self):
        return [text for what, text, _ in self.lines("effects") if what == "end"]

    def replies(self, chat):
        """The texts that a chat has got. One that was being sent when its process was killed may have arrived twice."""
        mine = [(text, key) for where, text, key in self.lines("arrived") if where == chat]
        return [text for (text, _), _ in groupby(mine)]

    def wait_for(self, chat, text):
        block_until(lambda: text in self.replies(chat) or all(p.poll() is not None for p in self.processes))
        assert text in self.replies(chat)

    def owner(self):
        """The process that has the conversation, if the gateways use a file."""
        with closing(sqlite3.connect(self.folder / "gateway.db")) as db:
            return db.execute("SELECT owner FROM conversations").fetchone()[0]

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()

    def approvals(self):
        return ApprovalStore(self.url or self.folder / "approvals.db")


@pytest.fixture(params=["sqlite", "postgres"])
def scene(request, tmp_path):
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else ""
    scene = Scene(tmp_path, url)
    yield scene
    scene.close()


def test_killed_gateways_are_continued_without_repeating_a_finished_call(scene):
    chats, messages = [f"chat{n}" for n in range(6)], 4
    for chat in chats:
        for number in range(messages):
            scene.say(chat, f"{chat}-{number}", f"{chat}.{number}")
    first, second = scene.start(), scene.start()
    kills = 0
    for least in (8, 24, 40):
        block_until(lambda least=least: len(scene.ended()) >= least)
        scene.kill(first)
        kills += 1
        first, second = second, scene.start()
    for chat in chats:
        scene.wait_for(chat, f"did {chat}.{messages - 1}")
        assert scene.replies(chat) == [f"did {chat}.{number}" for number in range(messages)]
    wanted = {f"{chat}.{number}/{step}" for chat in chats for number in range(messages) for step in range(STEPS)}
    begun = Counter(text for what, text, _ in scene.lines("effects") if what == "begin")
    assert set(begun) == set(scene.ended()) == wanted
    keys = {(text, key) for _, text, key in scene.lines("effects")}
    assert len(keys) == len(wanted)  # a call that was in flight is made again with the same key
    assert sum(begun.values()) - len(wanted) <= kills * MAX_CONCURRENT


def test_a_run_whose_gateway_is_killed_in_mid_tool_completes_in_another(scene):
    first = scene.start(tool_seconds=30)
    scene.say("chat", "m1", "work")
    block_until(lambda: scene.lines("effects"))
    second = scene.start()
    scene.kill(first)
    scene.wait_for("chat", "did work")
    assert scene.ended() == [f"work/{step}" for step in range(STEPS)]
    assert second.poll() is None


@pytest.mark.sqlite
def test_a_gateway_with_other_instructions_leaves_a_run_to_one_that_can_continue_it(tmp_path):
    scene = Scene(tmp_path, "")
    try:
        first = scene.start(tool_seconds=30)
        scene.say("chat", "m1", "work")
        block_until(lambda: scene.lines("effects"))
        scene.start(poll_seconds=4)
        scene.start(instructions="Be brief.")
        scene.kill(first)
        block_until(lambda: scene.owner() is None)
        scene.wait_for("chat", "did work")
        assert scene.replies("chat") == ["did work"]
    finally:
        scene.close()


@pytest.mark.parametrize("way", ["operator", "chat"])
def test_a_call_is_approved_after_all_gateways_were_killed_and_is_made_once(scene, way):
    first = scene.start()
    scene.say("chat", "m1", "pay rent")
    scene.say("chat", "m2", "work")
    block_until(lambda: scene.replies("chat"))
    block_until(lambda: scene.approvals().rows(status="pending"))
    scene.kill(first)
    if way == "operator":
        (row,) = scene.approvals().rows(status="pending")
        scene.approvals().decide(row.id, decision="approve", digest=row.digest, by="an operator")
    else:
        code = re.match(r"[A-Z2-9]{4}", scene.replies("chat")[0])[0]
        scene.say("chat", "m3", f"/approve {code}")
    scene.start()
    scene.start()
    scene.wait_for("chat", "did work")
    replies = scene.replies("chat")
    assert [text for text in replies if text.startswith("did")] == ["did pay rent", "did work"]
    assert sum("wants to call" in text for text in replies) == 1
    assert scene.ended().count("pay rent/0") == 1


def test_a_restart_of_the_database_interrupts_no_conversation(tmp_path):
    if MISSING:
        pytest.skip(MISSING)
    cluster = Cluster()
    scene = Scene(tmp_path, cluster.url())
    try:
        scene.start(tool_seconds=0.2)
        for number in range(6):
            scene.say("chat", f"m{number}", f"work{number}")
        scene.wait_for("chat", "did work0")
        cluster.restart()
        scene.wait_for("chat", "did work5")
        assert scene.replies("chat") == [f"did work{number}" for number in range(6)]
        ended = scene.ended()
        assert set(ended) == {f"work{number}/{step}" for number in range(6) for step in range(STEPS)}
        assert len(ended) <= 6 * STEPS + 1  # only a call that was in flight may have been made again
    finally:
        scene.close()
        cluster.stop()
        cluster.remove()
