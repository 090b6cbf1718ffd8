"""Draw a recorded run under hooks as a terminal shows it, with the hooks in colour."""

import re
import subprocess
import sys
from pathlib import Path

from pictures.canvas import Canvas

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).with_name("run.txt")
TASK = "Read a note: doctor."
ROW = 23
VERBS = {"rewrites": "amber", "blocks": "red", "keeps it going": "blue"}


def record() -> None:
    """Run the tour of `make run` on the embedded model, and save its output."""
    command = [sys.executable, "-m", "hookline", "run", TASK]
    done = subprocess.run(command, cwd=ROOT / "examples/tour", capture_output=True, text=True, check=False)
    *lines, summary = done.stderr.splitlines()
    RECORD.write_text("\n".join([*lines, f"  says: {done.stdout.strip()}", summary]) + "\n")


class Terminal(Canvas):
    """The rows of a run, one below the other."""

    y = 64.0

    def who(self, name: str, tone: str) -> None:
        """Draw the label of the actor in this row."""
        self.label(22, self.y - 14, 56, 19, name, tone, size=11, r=9.5)

    def hook(self, name: str, verb: str, point: str, why: str) -> None:
        """Draw the verdict of a hook."""
        tone = VERBS.get(verb, "amber")
        self.box(16, self.y - 17, 688, ROW + 1, tone, 6)
        self.text(50, self.y, "hook", tone, size=12, at="middle", bold=True)
        self.text(90, self.y, name, tone, size=12, mono=True, bold=True)
        self.text(100 + 7.3 * len(name), self.y, verb, tone, size=12)
        self.text(690, self.y, f"{point}: {why}", tone, size=11, at="end")

    def line(self, line: str) -> None:
        """Draw one line of the record."""
        if found := re.fullmatch(r"step (\d+)", line):
            self.rule(20, self.y - 5, 650)
            self.text(700, self.y - 1, f"step {found[1]}", "quiet", size=11.5, at="end")
            self.y += 25
            return
        if found := re.fullmatch(r"hook (\w+) (.+?) at (\w+): (.*)", line):
            self.hook(*found.groups())
        elif found := re.fullmatch(r"(calls|says:) (.*)", line):
            self.who("model", "violet")
            self.text(90, self.y, found[1], "quiet", size=12)
            self.text(132, self.y, found[2], size=12, mono=True)
        elif found := re.fullmatch(r"tool (\w+) (\w+): (.*)", line):
            tone = "green" if found[2] == "ok" else "red"
            self.who("tool", tone)
            self.text(90, self.y, found[2] if tone == "red" else "gives", "quiet", size=12)
            self.text(90 + (54 if tone == "red" else 42), self.y, found[3], size=12, mono=True)
        else:
            self.rule(20, self.y - 9, 700)
            self.y += 14
            self.text(22, self.y, re.sub(r" · [\d.]+ s · cost.*", "", line), "quiet", size=11.5, mono=True)
        self.y += ROW + 3


def run() -> Canvas:
    """Draw the recorded run."""
    pic = Terminal("A real model at work under hooks: rewritten, blocked, kept going", 0)
    pic.text(22, 32, "$ make run", mono=True, size=13, bold=True)
    pic.text(700, 32, "a real model, SmolLM2-135M, at work under four hooks", "quiet", size=12, at="end")
    pic.who("you", "plain")
    pic.text(90, pic.y, TASK, mono=True, size=12)
    pic.y += ROW + 2
    for line in RECORD.read_text().splitlines():
        pic.line(line.strip())
    pic.height = pic.y
    return pic
