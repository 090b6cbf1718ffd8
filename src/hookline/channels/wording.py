"""What people are told by the gateway itself. Nothing of its insides is in here."""

from __future__ import annotations

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
