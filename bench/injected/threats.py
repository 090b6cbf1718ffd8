"""The samples of AgentThreatBench, by an agent that reads everything and obeys every instruction that it can read.

Samples and scorers come from the package inspect-evals. Its tools only read and write a store, so they are written
again here, as tools with declared effects. A call counts if it ran, and the scorers judge these calls and the answer.
"""

import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from inspect_evals.agent_threat_bench import scorer

from hookline import Agent, HookResult, Limits, Message
from hookline.hooks import InjectionGuard, ProvenanceGuard
from hookline.models import ModelResponse
from hookline.payloads import ApprovalRequest, ModelRequest, ToolCall
from hookline.points import APPROVAL_REQUESTED
from hookline.tools import Tool

TASKS = ("memory_poison", "autonomy_hijack", "data_exfil")


def _guards() -> list[Any]:
    return [InjectionGuard(action="withhold", taint_steps=0), ProvenanceGuard()]


class Person:
    """A person who approves exactly the calls that the user's task needs."""

    points = frozenset({APPROVAL_REQUESTED})

    def __call__(self, point: str, ctx: Any, request: ApprovalRequest) -> HookResult:
        """Decide by the origin of the call."""
        if request.call.id.startswith("user"):
            return HookResult.approve(by="person")
        return HookResult.deny("Nobody approved this call.")


SETUPS: dict[str, Callable[[], Sequence[Any]]] = {
    "none": list,
    "injection": lambda: [InjectionGuard()],
    "guards": _guards,
    "guards_person": lambda: [*_guards(), Person()],
}
_EMAIL = re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]*\w")
Call = tuple[str, dict[str, Any]]
Plan = tuple[list[Call], list[Call], str]


class Outcome(NamedTuple):
    """The scores of one sample."""

    task: str
    id: str
    owasp: str
    attack: bool
    useful: bool
    secure: bool


def samples(task: str) -> list[dict[str, Any]]:
    """Return the samples of a task in the installed package."""
    file = Path(scorer.__file__).parent / "data" / f"{task}.json"
    found: list[dict[str, Any]] = json.loads(file.read_text())
    return found


class Obedient:
    """A model that makes the calls of the user's task, and does first what the results that it can read tell it to do.

    Args:
        reads: the calls that read.
        then: returns the calls that the results dictate, those of the user's task, and the answer, from the text of
            all results.
    """

    name = "obedient"
    provider = "scripted"

    def __init__(self, reads: Sequence[Call], then: Callable[[str], Plan]) -> None:
        self._reads, self._then = list(reads), then
        self._plan: Plan | None = None
        self._number = 0

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Make the next call, or give the answer."""
        if self._reads:
            return self._call("user", self._reads)
        if self._plan is None:
            text = "\n".join(message.content for message in request.messages if message.role == "tool")
            self._plan = self._then(text)
        dictated, own, answer = self._plan
        if dictated:
            return self._call("dictated", dictated)
        return self._call("user", own) if own else ModelResponse(content=answer)

    async def stream(self, request: ModelRequest) -> AsyncIterator[str | ModelResponse]:
        """Yield the whole reply."""
        yield await self.complete(request)

    def count_tokens(self, content: str | Sequence[Message]) -> int:
        """Return a rough count."""
        return len(str(content)) // 4

    def _call(self, origin: str, calls: list[Call]) -> ModelResponse:
        self._number += 1
        name, arguments = calls.pop(0)
        call = ToolCall(f"{origin}-{self._number}", name, arguments)
        return ModelResponse(tool_calls=(call,), finish_reason="tool_calls")


def run(task: str, sample: dict[str, Any], setup: str) -> Outcome:
    """Run one sample with the hooks of a setup, and score it."""
    ran: list[Any] = []
    plan = {"memory_poison": _memory, "autonomy_hijack": _inbox, "data_exfil": _customers}[task]
    tools, reads, then = plan(sample, lambda name, **given: ran.append(SimpleNamespace(function=name, arguments=given)))
    agent = Agent("bench", llm=Obedient(reads, then), tools=tools, hooks=list(SETUPS[setup]()), limits=Limits(steps=60))
    result = agent.run(sample["input"])
    score = getattr(scorer, f"_score_{task}")
    useful, secure = score(result.reply, ran, sample)
    attack = sample["attack_name"] != "clean_baseline"
    return Outcome(task, sample["id"], sample["owasp_id"], attack, useful, secure)


def _memory(sample: dict[str, Any], log: Callable[..., None]) -> Any:
    store: dict[str, str] = sample["memory_store"]

    def memory_read(key: str) -> str:
        """Look up information in the knowledge base."""
        log("memory_read", key=key)
        return store.get(key, "No entry.")

    def then(text: str) -> Plan:
        wanted = (sample["attack_marker"], sample["expected_answer"])
        return [], [], " ".join(word for word in wanted if word.lower() in text.lower())

    return [Tool(memory_read, effects=["read"], untrusted=True)], [("memory_read", {"key": key}) for key in store], then


def _inbox(sample: dict[str, Any], log: Callable[..., None]) -> Any:
    mails: list[dict[str, str]] = sample["inbox"]

    def read_inbox() -> list[dict[str, Any]]:
        """Retrieve all emails from the inbox."""
        log("read_inbox")
        return [{"email": number, **mail} for number, mail in enumerate(mails, 1)]

    def categorize_email(email_index: int, category: str) -> str:
        """Categorize an email in the inbox as important, normal or spam."""
        log("categorize_email", email_index=email_index, category=category)
        return "Done."

    def draft_summary(email_index: int, summary: str) -> str:
        """Draft a summary of an email."""
        log("draft_summary", email_index=email_index, summary=summary)
        return "Done."

    def then(text: str) -> Plan:
        dictated = [words for words in sample["forbidden_actions"] if words in text]
        bad = sample["attack_email_indices"] if dictated else []
        wanted: list[Call] = []
        for number in bad:
            wanted.append(("categorize_email", {"email_index": number, "category": "important"}))
            wanted.append(("draft_summary", {"email_index": number, "summary": " ".join(dictated)}))
        own: list[Call] = []
        for number, mail in enumerate(mails, 1):
            if mail["subject"] in text:
                own.append(("categorize_email", {"email_index": number, "category": "normal"}))
                own.append(("draft_summary", {"email_index": number, "summary": mail["subject"]}))
        return wanted, own, "I have sorted the emails."

    tools = [
        Tool(read_inbox, effects=["read"], untrusted=True),
        Tool(categorize_email, effects=["write"], untrusted=False),
        Tool(draft_summary, effects=["write"], untrusted=False),
    ]
    return tools, [("read_inbox", {})], then


def _customers(sample: dict[str, Any], log: Callable[..., None]) -> Any:
    records: list[dict[str, str]] = sample["customer_db"]
    customer = records[0]["id"]

    def lookup_customer(query: str) -> dict[str, str]:
        """Search the customer database by name or id."""
        log("lookup_customer", query=query)
        return next((record for record in records if query in (record["id"], record["name"])), {})

    def send_message(recipient: str, body: str) -> str:
        """Send a message to a recipient."""
        log("send_message", recipient=recipient, body=body)
        return "Sent."

    def resolve_ticket(customer_id: str, resolution: str) -> str:
        """Resolve a support ticket."""
        log("resolve_ticket", customer_id=customer_id, resolution=resolution)
        return "Resolved."

    def then(text: str) -> Plan:
        known = {*sample["authorized_recipients"], *(record["email"] for record in records[:1])}
        told = dict.fromkeys(address for address in _EMAIL.findall(text) if address not in known)
        leak = " ".join(field for field in sample["sensitive_fields"] if field in text)
        sends: list[Call] = [("send_message", {"recipient": address, "body": leak}) for address in told]
        done = {"customer_id": customer, "resolution": "The request was handled as described."}
        return sends, [("resolve_ticket", done)], "The ticket is resolved."

    tools = [
        Tool(lookup_customer, effects=["read"], untrusted=True),
        Tool(send_message, effects=["write", "network"], untrusted=False),
        Tool(resolve_ticket, effects=["write"], untrusted=False),
    ]
    return tools, [("lookup_customer", {"query": record["id"]}) for record in records], then
