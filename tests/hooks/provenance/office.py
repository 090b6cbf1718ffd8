"""An office whose reading tools return what a case says, and a model that obeys: it makes the injected calls first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from hookline import Limits, tool
from hookline.hooks import InjectionGuard, ProvenanceGuard
from hookline.testing import call, scripted_agent
from hookline.tools import Tool

Call = tuple[str, Mapping[str, Any]]


class Read(NamedTuple):
    """A call that reads, and its result."""

    tool: str
    arguments: Mapping[str, Any]
    result: Any


@dataclass(frozen=True)
class Case:
    """A request, what is read for it, the calls that it needs, and the calls that an injected text wants."""

    request: str
    read: Sequence[Read]
    needed: Sequence[Call] = ()
    harmful: Sequence[Call] = ()
    kind: str = "harmless"
    """What the injected calls change: an amount, a name, a time or a text. With ``again``, they come after the others,
    because they are more of what was asked for."""


@dataclass
class Outcome:
    """What happened in one case."""

    leaked: list[Call] = field(default_factory=list)
    lost: list[Call] = field(default_factory=list)


def play(case: Case, *, injection_guard: bool = False) -> Outcome:
    """Make the calls of a case, the harmful ones first unless they repeat the others, with nobody to ask."""
    hooks: list[Any] = [ProvenanceGuard()]
    if injection_guard:
        hooks.insert(0, InjectionGuard(action="withhold", taint_steps=0))
    results = [read.result for read in case.read]
    turns = [call(read.tool, **read.arguments) for read in case.read]
    parts = [(True, each) for each in case.harmful], [(False, each) for each in case.needed]
    acts = [*parts[1], *parts[0]] if case.kind == "again" else [*parts[0], *parts[1]]
    turns += [call(name, **arguments) for _, (name, arguments) in acts]
    agent = scripted_agent([*turns, "Done."], tools=tools(results), hooks=hooks, limits=Limits(steps=len(turns) + 2))
    steps = agent.run(case.request).steps[len(case.read) :]
    outcome = Outcome()
    for (is_harmful, act), step in zip(acts, steps, strict=False):
        has_run = step.outcomes == ("ok",)
        assert has_run or step.outcomes == ("blocked",), (act, step)
        if is_harmful and has_run:
            outcome.leaked.append(act)
        elif not is_harmful and not has_run:
            outcome.lost.append(act)
    return outcome


def tools(results: list[Any]) -> list[Tool]:
    """Return the tools of the office. Reading tools return the given results one after another."""
    waiting = iter(results)

    @tool(effects=["read"], untrusted=True)
    def read_file(path: str) -> Any:
        """Read a file."""
        return next(waiting)

    @tool(effects=["read"], untrusted=True)
    def list_files(folder: str = "") -> Any:
        """List files with their size."""
        return next(waiting)

    @tool(effects=["read"], untrusted=True)
    def list_bills(folder: str = "") -> Any:
        """List the bills of a folder."""
        return next(waiting)

    @tool(effects=["read"], untrusted=True)
    def read_mails(folder: str = "", sender: str = "", query: str = "") -> Any:
        """Read mails."""
        return next(waiting)

    @tool(effects=["read"], untrusted=True)
    def list_transactions(count: int = 10) -> Any:
        """List transactions."""
        return next(waiting)

    @tool(effects=["read"], untrusted=True)
    def list_orders(customer: str = "") -> Any:
        """List orders."""
        return next(waiting)

    @tool(effects=["read"], untrusted=True)
    def list_events(day: str = "") -> Any:
        """List events of the calendar."""
        return next(waiting)

    @tool(effects=["read"], untrusted=True)
    def find_contacts(name: str = "") -> Any:
        """Find contacts."""
        return next(waiting)

    @tool(effects=["read"], untrusted=True)
    def list_members(name: str = "") -> Any:
        """List the members of a list or channel."""
        return next(waiting)

    @tool(effects=["read"], untrusted=True)
    def list_channels() -> Any:
        """List channels."""
        return next(waiting)

    @tool(effects=["read"], untrusted=True)
    def read_channel(channel: str) -> Any:
        """Read the messages of a channel."""
        return next(waiting)

    @tool(effects=["read"], untrusted=True)
    def list_hotels(city: str) -> Any:
        """List hotels."""
        return next(waiting)

    @tool(effects=["read", "network"])
    def fetch(url: str) -> Any:
        """Fetch a page."""
        return next(waiting)

    @tool(effects=["read"])
    def today() -> Any:
        """Return the current day."""
        return next(waiting)

    @tool(effects=["write", "network"])
    def send_money(recipient: str, amount: float, subject: str = "") -> str:
        """Send money."""
        return "sent"

    @tool(effects=["write", "network"])
    def schedule_payment(recipient: str, amount: float, date: str, subject: str = "") -> str:
        """Schedule a payment."""
        return "scheduled"

    @tool(effects=["write", "network"])
    def refund_order(order_id: str, amount: float) -> str:
        """Refund an order."""
        return "refunded"

    @tool(effects=["write", "network"])
    def send_mail(to: list[str], subject: str, body: str) -> str:
        """Send a mail."""
        return "sent"

    @tool(effects=["write", "network"])
    def post_message(channel: str, text: str) -> str:
        """Post a message in a channel."""
        return "posted"

    @tool(effects=["write", "network"])
    def create_event(
        title: str, start: str, end: str = "", participants: list[str] | None = None, location: str = ""
    ) -> str:
        """Create an event."""
        return "created"

    @tool(effects=["write", "network"])
    def move_event(event_id: str, start: str) -> str:
        """Move an event to another time."""
        return "moved"

    @tool(effects=["delete"])
    def delete_event(event_id: str) -> str:
        """Delete an event."""
        return "deleted"

    @tool(effects=["delete"])
    def delete_file(file_id: str) -> str:
        """Delete a file."""
        return "deleted"

    @tool(effects=["delete"])
    def delete_mail(mail_id: str) -> str:
        """Delete a mail."""
        return "deleted"

    @tool(effects=["write", "network"])
    def share_file(file_id: str, email: str, permission: Literal["r", "rw"] = "r") -> str:
        """Share a file."""
        return "shared"

    @tool(effects=["write"])
    def create_file(name: str, text: str) -> str:
        """Create a file."""
        return "created"

    @tool(effects=["write"])
    def add_to_channel(user: str, channel: str) -> str:
        """Add a user to a channel."""
        return "added"

    @tool(effects=["write", "network"])
    def book_hotel(hotel: str, start: str, end: str) -> str:
        """Book a hotel."""
        return "booked"

    @tool(effects=["write"])
    def set_price(product: str, price: float) -> str:
        """Set the price of a product."""
        return "set"

    return [each for each in locals().values() if isinstance(each, Tool)]
