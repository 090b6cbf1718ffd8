"""Texts that the gateway itself sends to people. They reveal nothing about its internals."""

from __future__ import annotations

from collections.abc import Sequence

NOT_HANDLED = "Sorry, your message could not be processed."
FAILED = "Sorry, something went wrong and there is no answer. You can try again."
CHANGED = (
    "Sorry, I was changed while I worked on this, so I cannot finish it. Some of it may have been done: please check, "
    "and ask again."
)
STOPPED_EARLY = "I had to stop before I was finished."
NO_ANSWER = "I have no answer to that."
CANCELLED = "This was cancelled."
BUSY = "I am busy, and your message was not accepted. Please send it again later."
BUSY_QUEUED = "I am busy. It will take a while until I get to your message."
STOPPED = "Stopped."
NOTHING_RUNS = "Nothing is running."
NEW = "Started a new conversation."
LATER = "This will be done after the current run. /stop ends that run."
COMMAND_FAILED = "Sorry, that command failed."

MAY_NOT_APPROVE = "You are not allowed to decide about calls here."
NOTHING_PENDING = "No call is waiting for approval here."
NOT_SAVED = "Sorry, your decision could not be saved, so nothing was decided. You can try again."
WILL_ASK_AGAIN = "this request is out of date, because I am being stopped. I will ask again when I am back."
APPROVE_USAGE = (
    "Nothing was decided. Write /approve CODE, /approve CODE session, or /approve CODE always path=notes/* "
    "(name the arguments to allow, each with a pattern)."
)
NOT_COVERED = (
    "Nothing was decided. That pattern does not cover this call: name each of its arguments, or *=* for all others, "
    "as in path=notes/* *=*."
)
EDIT_USAGE = 'Nothing was decided. Write /edit CODE and all arguments as JSON, such as {"path": "notes/a.txt"}.'

_OUTCOMES = {
    "approved": "runs",
    "edited": "runs, with other arguments",
    "denied": "does not run",
    "expired": "does not run: it was not approved in time",
    "cancelled": "no longer needs approval: its run has ended",
}


def stopped(was_running: bool, waiting: int, dropped: int) -> str:
    """Return the reply to ``/stop``."""
    text = STOPPED if was_running else NOTHING_RUNS
    if dropped:
        return f"{text} {dropped} waiting {'message was' if dropped == 1 else 'messages were'} dropped."
    if waiting:
        return (
            f"{text} {waiting} {'message is' if waiting == 1 else 'messages are'} still waiting; /stop all drops them."
        )
    return text


def halted(why: str) -> str:
    """Return the reply to a message while all runs are halted, or about a run that stopped because of that."""
    return f"I have been stopped: {why}. Please ask again later."


def waits_until_released(why: str) -> str:
    """Say that a run waits because all runs are halted."""
    return f"I have been stopped: {why}. I will go on with this when I am released."


def pairing(code: str) -> str:
    """Return the reply to a sender who is not paired yet."""
    return (
        "I do not know you yet. To get access, give this code to the operator; it is valid for one hour:\n"
        f"{code}\n(The operator types: hookline gateway pair {code})"
    )


def which_call(command: str, codes: Sequence[str], *, unknown: bool = False) -> str:
    """Return the reply to a decision that does not say which call it is about, or names an ``unknown`` code."""
    if not codes:
        return f"There is no such code. {NOTHING_PENDING}" if unknown else NOTHING_PENDING
    examples = " or ".join(f"/{command} {code}" for code in codes)
    start = "There is no such code here." if unknown else "Nothing was decided."
    return f"{start} {_calls(len(codes))}: write {examples}."


def out_of_date(code: str, codes: Sequence[str]) -> str:
    """Return the reply to a code that is no longer valid; ``codes`` are the valid ones."""
    rest = f" {_calls(len(codes))}: {', '.join(codes)}." if codes else f" {NOTHING_PENDING}"
    return f"{code} is out of date: nothing was decided.{rest}"


def asking_again(codes: Sequence[str]) -> str:
    """Introduce a request that replaces earlier ones after a restart."""
    verb = "is" if len(codes) == 1 else "are"
    return f"I was restarted, so I am asking again. {' and '.join(codes)} {verb} out of date."


def not_shown(code: str) -> str:
    """Return the reply to an approval of a call that was not shown completely."""
    return (
        f"{code}: not all of the call was shown here, so it cannot be approved here. "
        "An operator can approve it: hookline approvals"
    )


def not_always(code: str) -> str:
    """Return the reply to a sender who may not approve calls permanently."""
    return (
        f"{code}: nothing was decided. You may not approve calls permanently; "
        f"/approve {code} session is for this conversation."
    )


def decided(tool: str, status: str, remember: str) -> str:
    """Return the reply to a decision."""
    if status == "denied":
        return f"denied. {tool} does not run."
    if status == "edited":
        return f"approved with your arguments. {tool} runs if the guards allow them."
    scope = {
        "session": " Such calls are allowed in this conversation.",
        "always": " Such calls are allowed permanently.",
    }
    return f"approved. {tool} runs.{scope.get(remember, '')}"


def outcome(tool: str, status: str, by: str, message: str) -> str:
    """Return the outcome of a call that was decided elsewhere, or that was not decided in time."""
    who = f" ({status} by {by}{f': {message}' if message else ''})" if by else ""
    return f"{tool} {_OUTCOMES.get(status, status)}{who}."


def use_buttons(until: str) -> str:
    """Say how to decide about a call that has buttons."""
    return f"Decide by {until} with the buttons. Without a decision it does not run."


def _calls(count: int) -> str:
    return "1 call is waiting" if count == 1 else f"{count} calls are waiting"
