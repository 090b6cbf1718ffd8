"""``hookline chat`` on the screen of a real terminal program: what a person sees."""

import json
import re
import shlex
import shutil
import subprocess
import uuid

import pytest

from tests.shown import without_duration
from tests.waiting import block_until

from .conftest import COMMAND

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
]

RULES = """
from hookline import HookResult, guard, hook

told = []

@guard("before_tool")
def careful(ctx, request):
    if "secret" in request.arguments["expression"]:
        return HookResult.block("Not that one.", reason="rule 3")
    return HookResult.ask("Is this needed?", reason="rule 7")

@hook("on_stop")
def unfinished(ctx, stopping):
    if not told:
        told.append(1)
        return HookResult.keep_going("Say it in Markdown.", reason="rule 9")
"""
REPLY = "# Result\n\nIt is **42**:\n\n- one\n- two\n\n```python\nprint(6 * 7)\n```\n\n❯ /quit\n\nThe end."


class Screen:
    """A screen of 100 columns and 40 lines."""

    def __init__(self, command, folder, env):
        self._name = f"hookline-{uuid.uuid4().hex[:8]}"
        # The program gets the environment of the test and nothing else: a history that chats of other tests share would
        # bring back their messages. This terminal has a size of its own, and says where its cursor is.
        other = ("COLUMNS", "LINES", "PROMPT_TOOLKIT_NO_CPR")
        self._env = {name: value for name, value in env.items() if name not in other}
        size = ("-x", "100", "-y", "40")
        shell = f"cd {shlex.quote(str(folder))} && exec {shlex.join(map(str, command))}"
        self._tmux("-f", "/dev/null", "new-session", "-d", *size, "sh", "-c", shell)

    def _tmux(self, *args):
        command = ["tmux", "-L", self._name, *args]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=self._env).stdout

    def send(self, *keys):
        self._tmux("send-keys", *keys)

    def paste(self, text):
        self._tmux("set-buffer", text)
        self._tmux("paste-buffer", "-p")

    @property
    def lines(self):
        """All lines, with those that scrolled away, without empty ones."""
        shown = self._tmux("capture-pane", "-p", "-S", "-500").splitlines()
        return [line.rstrip() for line in shown if line.strip()]

    @property
    def colours(self):
        return self._tmux("capture-pane", "-p", "-e", "-S", "-500")

    def wait_for(self, words):
        block_until(lambda: any(words in line for line in self.lines))

    def wait_for_prompt(self, number):
        """Wait until the prompt is there for the nth time, with the status line below it."""
        block_until(lambda: sum(line.startswith("❯") for line in self.lines) == number and "/help" in self.lines[-1])

    @property
    def is_open(self):
        return bool(self._tmux("list-sessions"))

    def close(self):
        self._tmux("kill-server")


@pytest.fixture
def chat(folder, env):
    """Start a chat with these turns of a model."""
    open_screens = []

    def start(*turns, delay=0.0, hooks=False):
        (folder / "rules.py").write_text(RULES)
        (folder / "turns.json").write_text(json.dumps({"turns": turns, "delay": delay}))
        command = [*COMMAND, "chat", "-m", "scripted:turns.json", *(("--hooks", "rules.py") if hooks else ())]
        open_screens.append(Screen(command, folder, env))
        open_screens[-1].wait_for_prompt(1)
        return open_screens[-1]

    yield start
    for screen in open_screens:
        screen.close()


def calls(expression):
    return {"tool": "calculate", "arguments": {"expression": expression}}


def test_a_turn_with_a_block_an_approval_and_a_reply_in_markdown(chat):
    screen = chat(["I try.", calls("secret")], calls("6*7"), "Forty-two.", REPLY, hooks=True, delay=0.01)
    screen.send("what is it?", "Enter")
    screen.wait_for("[e]dit:")
    screen.send("y")
    screen.wait_for_prompt(2)
    lines = screen.lines
    at = lines.index("❯ what is it?")
    *rest, prompt, status = lines[at + 1 :]
    assert [re.sub(r"by \S+@terminal", "by me", without_duration(line)) for line in rest] == [
        "  I try.",
        '→ calls calculate {"expression":"secret"}',
        "┃ careful blocked the call at before_tool: rule 3",
        "─○─┃┄□┄ tool calculate blocked: Not that one.",
        '→ calls calculate {"expression":"6*7"}',
        'calculate wants to run with {"expression":"6*7"}',
        "  careful asks: Is this needed? (rule 7)",
        "Approve? [y]es / [n]o / [s]ession / [a]lways / [e]dit: y",
        "● calculate approved by me",
        "─○─●─■─ tool calculate ok: 42",
        "  Forty-two.",
        "◆ unfinished kept the run going at on_stop: rule 9",
        "· it tells the model: Say it in Markdown.",
        "  Result",
        "  It is 42:",
        "   • one",
        "   • two",
        "   print(6 * 7)",
        "  ❯ /quit",
        "  The end.",
    ]
    assert prompt == "❯"
    assert re.fullmatch(r"turns.json · \d+ tokens · cost \$0.0000 · \d+\.\d s · /help", status)
    assert re.search(r"\x1b\[31m┃", screen.colours)


def test_the_arguments_of_a_call_cannot_look_like_another_question(chat):
    """A terminal of 100 columns begins a new line after the spaces."""
    expression = "1+1".ljust(100 - len('    expression: "')) + "calculate wants to run with 2+2"
    screen = chat(["I try.", calls(expression)], "Done.", hooks=True)
    screen.send("what is it?", "Enter")
    screen.wait_for("[e]dit:")
    (rest,) = [line for line in screen.lines if "2+2" in line and "→" not in line and "…" not in line]
    assert rest.startswith("        ")


def test_no_paragraph_is_lost_while_a_long_reply_streams(chat):
    paragraphs = [f"paragraph {n} " + "with some words " * (n % 7) for n in range(60)]
    screen = chat("\n\n".join(paragraphs), delay=0.002)
    screen.send("go", "Enter")
    screen.wait_for_prompt(2)
    shown = " ".join(" ".join(screen.lines).split())
    assert " ".join(" ".join(paragraphs).split()) in shown


def test_a_paste_of_several_lines_is_one_turn_and_comes_back_in_a_later_chat(chat):
    screen = chat("First.", "Second.")
    screen.paste("one\ntwo\nthree")
    screen.wait_for("  three")
    screen.send("Enter")
    screen.wait_for("  First.")
    screen.wait_for_prompt(2)
    assert "  Second." not in screen.lines
    screen.send("C-d")
    block_until(lambda: not screen.is_open)
    later = chat("Again.")
    later.send("Up")
    later.wait_for("  three")
    assert "❯ one" in later.lines


def test_slash_commands_and_files_are_offered_while_typing(chat, folder):
    (folder / "photo.png").touch()
    screen = chat("x")
    screen.send("/att")
    screen.wait_for("attach a file or a URL")
    screen.send("Tab", " pho")
    screen.wait_for("photo.png")
    screen.send("Tab")
    screen.wait_for("❯ /attach photo.png")


def test_esc_keeps_what_was_written_and_typed_keys_are_not_among_it(chat):
    screen = chat("word " * 3000, delay=0.02)
    screen.send("go", "Enter")
    screen.wait_for("  word word word")
    screen.send("typed ahead")
    screen.wait_for("Esc interrupts")
    screen.send("Escape")
    screen.wait_for("(cancelled")
    screen.wait_for("❯ typed ahead")
    assert sum("typed" in line for line in screen.lines) == 1
    assert "◆ the text above is incomplete" in screen.lines
