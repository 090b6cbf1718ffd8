"""Rejected text at the command line: events as JSON, and a chat at a terminal (DESIGN 7.14)."""

import json

RAIL = """
from hookline import AFTER_LLM, HookResult, guard

@guard(AFTER_LLM)
def rail(ctx, answer):
    return HookResult.retry("Do not tell.") if "code" in answer.content else None
"""
TURNS = ("the launch code is 4711", "all is well")


def test_the_events_of_a_run_have_no_rejected_text_unless_the_stream_is_live(hookline, script, folder):
    (folder / "rail.py").write_text(RAIL)
    args = ("run", "Tell me.", "--json", "--hooks", "rail.py", "--model", script(*TURNS))
    safe = hookline(*args)
    assert safe.returncode == 0, safe.stderr
    assert "launch" not in safe.stdout
    live = [json.loads(line) for line in hookline(*args, "--stream", "live").stdout.splitlines()]
    kinds = [event["type"] for event in live if event["type"] in ("text_delta", "discarded")]
    assert kinds == ["text_delta"] * 5 + ["discarded"] + ["text_delta"] * 3
    assert "stream: expected" in hookline(*args, "--stream", "fast").stderr


def test_a_chat_shows_no_rejected_text_unless_the_stream_is_live(terminal, script, folder):
    (folder / "rail.py").write_text(RAIL)
    args = ("chat", "--hooks", "rail.py", "--model", script(*TURNS))
    chat = terminal(*args)
    chat.wait_for("❯ ")
    chat.send("Tell me.\n")
    chat.wait_for("all is well")
    assert "launch" not in chat.text
    chat.wait_for("❯ ")
    chat.send("/quit\n")
    assert chat.end() == 0
    chat = terminal(*args, "--stream", "live")
    chat.wait_for("❯ ")
    chat.send("Tell me.\n")
    chat.wait_for("4711")
    chat.wait_for("the text above was rejected")
    chat.wait_for("all is well")
    chat.wait_for("❯ ")
    chat.send("/quit\n")
    assert chat.end() == 0


def test_text_streams_live_with_the_hooks_that_are_always_there(hookline, script):
    done = hookline("run", "Hi.", "--json", "--write", "--shell", "--yes", "--model", script("one two three"))
    pieces = [event for event in map(json.loads, done.stdout.splitlines()) if event["type"] == "text_delta"]
    assert len(pieces) == 3, done.stderr
