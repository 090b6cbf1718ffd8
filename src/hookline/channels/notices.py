"""What people are told by the gateway itself. Nothing of its insides is in here."""

from __future__ import annotations

from collections.abc import Sequence

NOT_HANDLED = "Sorry, your message could not be handled."
FAILED = "Sorry, something went wrong and there is no answer. You can try again."
STOPPED_EARLY = "I had to stop before I was done."
NO_ANSWER = "I have no answer to that."
CANCELLED = "This was cancelled."
BUSY = "I am busy: your message was not taken. Please send it again later."
BUSY_QUEUED = "I am busy: it will take a while until I come to your message."
STOPPED = "Stopped."
NOTHING_RUNS = "Nothing is running."
NEW = "We begin anew."
LATER = "That is done after what is running; /stop ends that."
COMMAND_FAILED = "Sorry, that command failed."


def stopped(was_running: bool, waiting: int, dropped: int) -> str:
    """The answer to ``/stop``."""
    text = STOPPED if was_running else NOTHING_RUNS
    if dropped:
        return f"{text} {_messages(dropped)} dropped."
    if waiting:
        return f"{text} {_messages(waiting)} still waiting; /stop all drops them."
    return text


def _messages(count: int) -> str:
    return "1 message that waited is" if count == 1 else f"{count} messages that waited are"


def pairing(code: str) -> str:
    """What somebody is told who is not known."""
    return (
        "I do not know you yet. To be let in, give this code to whoever runs me; it is good for an hour:\n"
        f"{code}\n(They type: hookline gateway pair {code})"
    )


MAY_NOT_APPROVE = "You may not decide about calls here."
NOTHING_WAITS = "No call waits for approval here."
NOT_DECIDED = "Sorry, that could not be kept: nothing is decided. You can try again."
ASKED_AGAIN = "this is out of date: I am being stopped. I will ask again when I am back."
APPROVE_USAGE = (
    "Nothing is decided. Write /approve CODE, /approve CODE session, or /approve CODE always path=notes/* "
    "(for the arguments that are to be allowed, each with a pattern)."
)
NOT_COVERED = (
    "Nothing is decided. That pattern does not cover this call: name each of its arguments, or *=* for all others, "
    "as in path=notes/* *=*."
)
EDIT_USAGE = 'Nothing is decided. Write /edit CODE and all arguments as JSON, such as {"path": "notes/a.txt"}.'
_OUTCOMES = {
    "approved": "runs", "edited": "runs, with other arguments", "denied": "does not run",
    "expired": "does not run: nobody approved it in time", "cancelled": "is no longer asked about: its run is over",
}  # fmt: skip


def which(name: str, codes: Sequence[str], *, unknown: bool = False) -> str:
    """The answer to a command, or a yes or no, that does not say what about."""
    if not codes:
        return f"There is no such code. {NOTHING_WAITS}" if unknown else NOTHING_WAITS
    examples = " or ".join(f"/{name} {code}" for code in codes)
    start = "There is no such code here." if unknown else "Nothing is decided."
    return f"{start} {_calls(len(codes))}: write {examples}."


def _calls(count: int) -> str:
    return "1 call waits" if count == 1 else f"{count} calls wait"


def out_of_date(code: str, codes: Sequence[str]) -> str:
    """The answer to a code that was good once."""
    rest = f" {_calls(len(codes))}: {', '.join(codes)}." if codes else f" {NOTHING_WAITS}"
    return f"{code} is out of date: nothing is decided.{rest}"


def asked_anew(codes: Sequence[str]) -> str:
    """That a question is asked once more, under another code."""
    return (
        f"I was started again, so I ask again. {' and '.join(codes)} {'is' if len(codes) == 1 else 'are'} out of date."
    )


def not_seen(code: str) -> str:
    """The answer to a yes to what was not shown."""
    return f"{code}: not all of it was shown here, so it cannot be approved here. An operator can: hookline approvals"


def not_always(code: str) -> str:
    """The answer to who may not approve for good."""
    return f"{code}: nothing is decided. You may not approve calls for good; /approve {code} session is for here."


def decided(tool: str, status: str, remember: str) -> str:
    """The answer to who decided."""
    if status == "denied":
        return f"denied. {tool} does not run."
    if status == "edited":
        return f"approved, with your arguments. {tool} runs if the guards let them pass."
    for_good = {
        "session": " Such calls are allowed in this conversation.",
        "always": " Such calls are allowed for good.",
    }
    return f"approved. {tool} runs.{for_good.get(remember, '')}"


def outcome(tool: str, status: str, by: str, message: str) -> str:
    """What became of a call that somebody else, or nobody, decided about."""
    who = f" ({status} by {by}{f': {message}' if message else ''})" if by else ""
    return f"{tool} {_OUTCOMES.get(status, status)}{who}."
