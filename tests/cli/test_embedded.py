"""The program on the real embedded model."""

import pytest

from hookline.providers.local import weights

pytestmark = pytest.mark.slow


@pytest.fixture
def env(env):
    """With the weights that are there already."""
    return env | {"HOOKLINE_CACHE": str(weights.fetch().parent)}


def test_a_chat_with_the_embedded_model_continues_after_ctrl_c(terminal):
    chat = terminal("chat", "--no-default-tools", "--param", "max_tokens=200", TERM="xterm")
    chat.wait_for("SmolLM2-135M-Instruct (local) · 0 tools")
    chat.wait_for("❯ ")
    chat.send("Tell me a long story about a ship.\n")
    chat.wait_for(" the ", seconds=60)
    chat.interrupt("(cancelled")
    chat.wait_for("❯ ")
    chat.send("/tokens\n")
    chat.wait_for("1 turn: ")
    chat.wait_for("cost $0.0000")
    chat.wait_for("❯ ")
    chat.send("/quit\n")
    assert chat.end() == 0


def test_one_task_on_the_embedded_model_with_the_default_tools(hookline, folder):
    (folder / "notes.txt").write_text("Buy milk.\n")
    done = hookline("run", "What is 6 * 7?", "--max-steps", "1", "--param", "max_tokens=60")
    assert done.returncode in (0, 3), done.stderr
    told = done.stderr.splitlines()
    assert told[0] == "step 1"
    assert "cost $0.0000" in told[-1]
    assert "invalid" not in done.stderr.lower()  # whatever it called, the call parsed


def test_doctor_says_which_model_answered(hookline):
    done = hookline("doctor", "--no-sandbox")
    assert done.returncode == 0, done.stdout
    assert "SmolLM2-135M-Instruct (local) answered " in done.stdout
