"""Draw the course of a run with all of its points; verbs and kinds come from the point table."""

from hookline.points import POINTS
from pictures.canvas import Canvas

KINDS = {"pipeline": "amber", "merge": "green", "claim": "violet", "observe": "blue"}
MEANT = {"pipeline": "rewrite, judge, observe", "merge": "give parts", "claim": "first to claim", "observe": "look on"}
VERBS = ("replace", "block", "answer", "ask", "retry", "keep_going", "stop", "end")
COLUMN, GAP, LEFT, PILL = 150, 20, 30, 26


def x_of(column: int) -> float:
    """Return the left edge of a column."""
    return LEFT + column * (COLUMN + GAP)


class Life(Canvas):
    """A canvas that draws points and records which ones it has shown."""

    def __init__(self, title: str, height: float) -> None:
        super().__init__(title, height)
        self.shown: set[str] = set()

    def pill(self, x: float, y: float, width: float, name: str) -> None:
        """Draw a point in the colour of its kind."""
        self.shown.add(name)
        self.label(x, y, width, PILL, name, KINDS[POINTS[name].model], mono=True, size=12, r=PILL / 2)

    def point(self, column: int, y: float, name: str) -> None:
        """Draw a point with its verbs below."""
        x, point = x_of(column), POINTS[name]
        self.pill(x, y, COLUMN, name)
        verbs = [verb.replace("_", " ") for verb in VERBS if verb in point.verbs]
        if len(verbs) > 4:
            self.text(x + COLUMN / 2, y + PILL + 14, " · ".join(verbs[:3]), "quiet", size=11, at="middle")
            self.text(x + COLUMN / 2, y + PILL + 28, " · ".join(verbs[3:]), "quiet", size=11, at="middle")
        elif verbs:
            self.text(x + COLUMN / 2, y + PILL + 14, " · ".join(verbs), "quiet", size=11, at="middle")

    def legend(self, y: float, x: float = LEFT) -> None:
        """Draw the legend of the colours."""
        for (kind, tone), place in zip(KINDS.items(), (0, 226, 382, 540), strict=True):
            self.dot(x + place + 6, y - 4, 5, tone)
            self.text(x + place + 17, y, f"{kind}: {MEANT[kind]}", "quiet", size=11.5)


def across(pic: Canvas, column: int, y: float, *, back: bool = False) -> None:
    """Draw an arrow from one column to the next."""
    start, end = x_of(column) + COLUMN, x_of(column + 1)
    pic.arrow(*(((end, y), (start, y)) if back else ((start, y), (end, y))))


def life() -> Life:
    """Draw one run from its task to its result."""
    pic = Life("The life of a run: every moment at which a hook takes part", 674)
    middle = PILL / 2
    right = x_of(3) + COLUMN
    # Start.
    y = 28
    pic.label(x_of(0), y, COLUMN, PILL, "agent.run(task)", "plain", mono=True, size=12, r=6)
    for column, name in enumerate(("session_start", "on_run_start", "before_prompt_build"), 1):
        pic.point(column, y, name)
        across(pic, column - 1, y + middle)
    pic.text(x_of(1) + COLUMN / 2, y + PILL + 14, "first run of a session", "quiet", size=11, at="middle")
    pic.text(x_of(3) + COLUMN / 2, y + PILL + 14, "the system prompt", "quiet", size=11, at="middle")
    # Step.
    top = 106
    pic.box(12, top, 696, 352, "quiet", 14, dashed=True)
    pic.text(right, top + 22, "a step, again and again", "quiet", size=12.5, at="end", bold=True)
    x = x_of(3) + COLUMN / 2
    pic.arrow((x, y + PILL + 20), (x, 90), (x_of(0) + COLUMN / 2, 90), (x_of(0) + COLUMN / 2, top + 44))
    y = top + 44
    for column, name in ((0, "before_step"), (1, "before_llm"), (3, "after_llm")):
        pic.point(column, y, name)
    pic.box(x_of(2) - 6, y - 16, COLUMN + 12, 92, "plain", 12)
    pic.text(x_of(2) + COLUMN / 2, y + 6, "the model speaks", at="middle", bold=True)
    pic.point(2, y + 24, "on_token")
    across(pic, 0, y + middle)
    pic.arrow((x_of(1) + COLUMN, y + middle), (x_of(2) - 6, y + middle))
    pic.arrow((x_of(2) + COLUMN + 6, y + middle), (x_of(3), y + middle))
    # Tool calls.
    y = top + 172
    pic.arrow((x_of(3) + COLUMN / 2, top + 90), (x_of(3) + COLUMN / 2, y), tone="quiet")
    pic.text(x_of(3) + COLUMN / 2 - 8, top + 142, "calls of tools", "quiet", size=11.5, at="end")
    pic.point(3, y, "before_tool")
    pic.box(x_of(2) - 6, y - 26, COLUMN + 12, 92, "quiet", 12, dashed=True)
    pic.text(x_of(2) + COLUMN / 2, y - 9, "if somebody asked", "quiet", size=11.5, at="middle")
    pic.point(2, y, "approval_requested")
    pic.point(2, y + 33, "approval_decided")
    pic.box(x_of(1) - 6, y - 26, COLUMN + 12, 92, "plain", 12)
    pic.text(x_of(1) + COLUMN / 2, y - 4, "the tools run", at="middle", bold=True)
    pic.point(1, y + 17, "on_progress")
    pic.text(x_of(1) + COLUMN / 2, y + 57, "start, progress, end", "quiet", size=11, at="middle")
    pic.point(0, y, "after_tool")
    pic.point(0, y + 50, "tool_end_with_path")
    pic.text(x_of(0) + COLUMN / 2, y + 50 + PILL + 14, "if a path was named", "quiet", size=11, at="middle")
    pic.arrow((x_of(3), y + middle), (x_of(2) + COLUMN + 6, y + middle))
    pic.arrow((x_of(2) - 6, y + middle), (x_of(1) + COLUMN + 6, y + middle))
    pic.arrow((x_of(1) - 6, y + middle), (x_of(0) + COLUMN, y + middle))
    # End.
    y = top + 294
    pic.arrow((x_of(0) + COLUMN / 2, top + 172 + 97), (x_of(0) + COLUMN / 2, y))
    pic.point(0, y, "after_step")
    up, out = top + 44 + middle, right + 9
    pic.arrow((right, up), (out, up), (out, y + middle), (x_of(0) + COLUMN, y + middle))
    pic.text(right - 2, y + middle - 8, "no calls: this reply is the answer", "quiet", size=11.5, at="end")
    pic.arrow((x_of(0), y + middle), (21, y + middle), (21, up), (x_of(0), up))
    below = 494
    pic.arrow((x_of(0) + COLUMN / 2, y + PILL + 20), (x_of(0) + COLUMN / 2, below))
    pic.text(x_of(0) + COLUMN / 2 + 10, below - 15, "an answer, a stop or a limit", "quiet", size=11.5)
    pic.point(0, below, "on_stop")
    pic.point(1, below, "on_run_end")
    pic.label(x_of(2), below, COLUMN, PILL, "AgentResult", "plain", mono=True, size=12, r=6)
    pic.arrow((x_of(0), below + middle), (21, below + middle), (21, y + middle), dashed=True, head=False)
    across(pic, 0, below + middle)
    across(pic, 1, below + middle)
    pic.text(x_of(1) + COLUMN / 2, below + PILL + 28, "always, exactly once", "quiet", size=11, at="middle")
    # At any time.
    last = 562
    pic.text(LEFT, last + 17, "at any time", bold=True)
    pic.point(1, last, "on_error")
    pic.text(x_of(1) + COLUMN / 2, last + PILL + 28, "anything fails", "quiet", size=11, at="middle")
    pic.point(2, last, "before_compaction")
    pic.text(x_of(2) + COLUMN / 2, last + PILL + 28, "a long history is folded", "quiet", size=11, at="middle")
    pic.legend(652)
    return pic


def outside() -> Life:
    """Draw the points of a gateway and of a team."""
    pic = Life("The points around a run: messages, subagents, personalities and tickets", 326)
    middle = PILL / 2
    pic.text(LEFT, 34, "a message of a channel", bold=True)
    y = 48
    pic.point(0, y, "message_received")
    pic.point(1, y, "inbound_claim")
    pic.label(x_of(2), y, COLUMN, PILL, "a run", "plain", bold=True, r=6)
    pic.point(3, y, "message_sending")
    pic.point(2, y + 56, "before_dispatch")
    pic.point(3, y + 56, "message_sent")
    for column in range(3):
        across(pic, column, y + middle)
    pic.text(x_of(1) + COLUMN / 2, y + PILL + 14, "a handler may take it", "quiet", size=11, at="middle")
    x = x_of(3) + COLUMN / 2
    pic.arrow((x, y + PILL), (x, y + 42), (x_of(2) + COLUMN / 2, y + 42), (x_of(2) + COLUMN / 2, y + 56))
    across(pic, 2, y + 56 + middle)
    pic.text(x_of(2) - 12, y + 56 + 17, "a claim keeps it from being sent", "quiet", size=11, at="end")
    pic.text(LEFT, 164, "a subagent", bold=True)
    y = 178
    pic.point(0, y, "subagent_spawning")
    pic.point(1, y, "subagent_spawned")
    pic.label(x_of(2), y, COLUMN, PILL, "a run inside the run", "plain", bold=True, r=6)
    pic.point(3, y, "subagent_ended")
    for column in range(3):
        across(pic, column, y + middle)
    pic.text(x_of(0) + COLUMN / 2, y + PILL + 14, "may refuse it", "quiet", size=11, at="middle")
    y = 242
    pic.text(LEFT, y + 17, "a switch", bold=True)
    pic.text(x_of(1) + 70, y + 17, "a ticket", bold=True)
    pic.pill(LEFT + 66, y, 158, "personality_switched")
    pic.pill(x_of(1) + 132, y, 174, "before_ticket_complete")
    pic.pill(x_of(3) - 12, y, 166, "after_ticket_revision")
    pic.arrow((x_of(1) + 132 + 174, y + middle), (x_of(3) - 12, y + middle))
    pic.legend(304)
    return pic
