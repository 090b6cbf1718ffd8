"""ProvenanceGuard: asks before a call uses a value that came from untrusted content."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property, partial
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from .._base.text import snake_case
from .._kernel.payloads import RunStart, ToolCallRequest, ToolCallResult
from .._kernel.points import AFTER_TOOL, BEFORE_TOOL, ON_RUN_START
from .._kernel.results import HookResult
from .._kernel.validation import check_names
from .._kernel.values import Message
from ..tools.registry import ToolView
from ._injection.fence import unfenced
from ._provenance.moments import Moments, moments
from ._provenance.sources import AMOUNT, Field, Record, Source, is_id_name, is_name, is_reference, leaves, mentions
from ._provenance.words import (
    ACCOUNT,
    EMAIL,
    URL,
    Words,
    copies,
    demand,
    identifying,
    is_address,
    numbers_in,
    repeats,
    significant,
    tokens,
)
from ._support.tools import find_tool
from .compaction import MARK

_HOST = re.compile(r"(?:[a-z0-9-]{1,63}\.){1,8}[a-z]{2,24}(?::\d+)?(?:/\S*)?", re.IGNORECASE)
_PRIVATE = re.compile(rf"{ACCOUNT.pattern}|\b\d{{4}}(?:[ -]\d{{4}}){{2,}}\b")
_DATE = re.compile(r"[\d\s:./TZ+-]+")
_PHONE = re.compile(r"(?!\d{4}-\d\d-\d\d)\+?(?=(?:\D*\d){6})[\d\s()/.-]+")
_MAILBOX = re.compile(r"[^<>@]*<([^<>]+)>")
"""An address with the name of its owner: ``Ann <ann@firm.example>``."""
_PLACE = re.compile(r"\S*\w\.\w{1,24}|\S*[/\\]\S*")

_PROSE = re.compile(
    r"(?:^|_)(?:body|content|text|message|subject|title|description|note|comment|reason|summary|query|caption|topic|"
    r"headline|memo|label|location|place|venue|street|city|country|region|zip|date|day|time|start|end|markdown|html)s?$"
)
_TARGET = re.compile(
    r"(?:^|_)(?:recipient|receiver|payee|beneficiary|to|cc|bcc|participant|attendee|member|person|contact|customer|"
    r"user|username|handle|account|iban|email|mail|address|url|uri|link|host|domain|webhook|endpoint|destination|dest|"
    r"target|phone|wallet|channel|group|room)(?:e?s)?$"
)
_WHEN = re.compile(
    r"(?:^|_)(?:date|day|time|datetime|start|end|begin|when|due|deadline|until|at|on|checkin|checkout)s?(?:_time|_date)?$"
)
_WRITTEN = re.compile(r"(?:^|_)(?:body|content|text|message|note|comment|reason|markdown|html|caption|memo)s?$")
"""The text that a call sends or stores, and not its title."""
_MIN_COPY = 3
"""From so many words on, a text that stands in an untrusted text is a copy."""
_ID_SUFFIX = re.compile(r"_?(?:id|uid|uuid|guid|ref|nr|number)s?_?$")
_FILE_NAME = re.compile(r"(?:^|_)(?:file|filename|path|folder|dir|directory)s?$")
_CANDIDATES = (
    ("address", EMAIL),
    ("link", URL),
    ("account", ACCOUNT),
    ("number", re.compile(r"(?<![\w.,-])\d+(?:\.\d+)?(?![\w-]|[.,]\d)")),
)
"""Kinds of values of which a question shows all that stand in a result."""
_PLURALS = {"address": "addresses"}
_MAX_CANDIDATES = 5
_GENERIC = frozenset(("get", "list", "read", "find", "search", "show", "name", "id"))
"""Words of names of tools and fields that say nothing about their content."""
_FILE = re.compile(r"[\w -]+\.[a-z0-9]{1,5}")
_SECRET = re.compile(r"(?:^|_)(?:password|passwd|passphrase|secret|token|pin|credential|api_?key)s?$")


class _Read:
    """The texts of the user and the tool results in a conversation."""

    def __init__(self) -> None:
        self.texts: dict[str, None] = {}
        """Texts of the user, in order."""
        self.sources: list[Source] = []
        self.trusted: list[tuple[Source, int]] = []
        """The results of trusted tools, each with the number of untrusted results before it."""
        self.created: set[str] = set()
        """Ids of entries that the run itself created."""
        self.made: dict[str, tuple[str, frozenset[str], Mapping[str, Any]]] = {}
        """The calls for the current request, by their id: the tool, the targets that the user named, the arguments."""
        self._words = Words()

    def hear(self, text: str) -> None:
        """Add a text of the user, with which a new request begins."""
        self.texts[text] = None
        self.made.clear()

    @property
    def words(self) -> Words:
        """The user's words."""
        if len(self._words.texts) != len(self.texts):
            self._words = Words(self.texts)
        return self._words

    @property
    def handed_over(self) -> Words:
        """The texts that the user asked to follow, such as the tasks in a message that the task names."""
        words = self.words
        if not words.hand_over:
            return Words()
        found: list[str] = []
        for source in self.sources:
            if source.named:
                found += (text for record in (source.loose, *source.records) for text in record.texts)
            elif source.designated:
                named = [record for record in source.records if record.named_by(words) and record.matches(words) > 1]
                sent = [record for record in source.records if record.is_from(words.authors)]
                for record in named or (sent if len(sent) == 1 else ()):
                    found += record.texts
        return Words(found)


class ProvenanceGuard:
    """Asks before a call uses a value that came from untrusted content and not from the user.

    While a conversation has read nothing untrusted, nothing is asked. After that, calls of tools that only read stay
    free. A call that writes, sends, deletes, executes or uses the network needs an approval unless the user's words
    lead to it:

    - The user asked for such an action, in any common verb: "pay" and "refund" allow ``send_money``.
    - Each recipient, account, URL, id or password in the call is in the user's words or in the result of a trusted
      tool, or it is a field of the one entry that the user's words single out: the address of a contact by the name of
      the contact, the id of an event by its title. What many entries share, such as a folder or a status, singles out
      none, and neither does a word of the request, such as "summary". An address in the *prose* of a mail or a page is
      never enough.
    - Names from lists, such as a channel, are fine unless prose recommends them, or they are only the author of a
      message; a tool that deletes takes only what the user named.
    - A text to be sent contains no link that came from untrusted content.
    - An amount, a date or a time is the user's, or that of an entry which the user's words single out, or it must be
      computed because the user asks for that ("half of it", "tomorrow").
    - If an untrusted text asks for the same kind of action, a value that it may have chosen needs an approval too, such
      as a name that is only in a list. So does a text that an untrusted text spells out.
    - A call that deletes or reaches others runs once for the same targets, unless the user asks for several.

    The rules use the declared effects of tools and the structure of their results, and no patterns of attacks. Each
    question says which value it is about, where that came from, and which other values of its kind stand there. If
    nobody approves, the call is denied, and the model reads why.

    Example:
        >>> agent = Agent("helper", llm="openai:gpt-5-mini", tools=tools, hooks=[ProvenanceGuard()])

    Args:
        trusted: globs of values that are always fine, such as ``*@example.com``.

    Raises:
        RegistrationError: an argument is invalid.
    """

    points = frozenset({ON_RUN_START, BEFORE_TOOL, AFTER_TOOL})
    phase: ClassVar[dict[str, str]] = {ON_RUN_START: "guard", BEFORE_TOOL: "guard"}
    priority = 100

    def __init__(self, trusted: Iterable[str] = ()) -> None:
        self.trusted = tuple(glob.casefold() for glob in check_names(trusted, "trusted", 0))
        self._runs: WeakValueDictionary[str, _Read] = WeakValueDictionary()

    def __call__(self, point: str, ctx: Any, payload: Any) -> Any:
        """Read a task or a tool result, or judge a tool call."""
        start = payload if point == ON_RUN_START else None  # without one, the guard was added during the run
        read: _Read = ctx.own_state(self, lambda: self._begin(ctx, start))
        if start is not None:
            return None
        if point == AFTER_TOOL:
            return self._note(ctx, read, payload)
        return self._judge(ctx, read, payload)

    # Reading.

    def _begin(self, ctx: Any, start: RunStart | None) -> _Read:
        """Share what the outer run has read; without one, read the conversation so far."""
        outer = self._runs.get(ctx.ids.parent_run_id)
        read = self._runs[ctx.run_id] = outer or _Read()
        task = "" if start is None else start.task
        if outer is None:
            self._read_history(ctx, read, ctx.state.messages)
            if task:
                read.hear(task)
        elif outer.sources:  # what a model writes after it read untrusted content is not the user's word
            read.sources.append(Source("the task of a subagent", {}, task, outside=False))
        elif task:
            read.hear(task)
        return read

    def _read_history(self, ctx: Any, read: _Read, messages: Sequence[Message]) -> None:
        arguments: dict[str, Mapping[str, Any]] = {}
        for message in messages:
            arguments |= {call.id: call.arguments for call in message.tool_calls}
            if message.role == "user":
                self._hear(read, message)
            elif message.role == "tool":
                given = arguments.get(message.call_id or "", {})
                self._add(ctx, read, message.name or "", given, unfenced(message.content))

    @staticmethod
    def _hear(read: _Read, message: Message) -> None:
        """Add a message of the user. A summary of the conversation quotes untrusted content."""
        if message.content.startswith(MARK):
            read.sources.append(Source("a summary of the conversation", {}, message.content, outside=False))
        else:
            read.hear(message.content)

    def _note(self, ctx: Any, read: _Read, result: ToolCallResult) -> None:
        if result.outcome != "ok":
            read.made.pop(result.id, None)
        if result.outcome in ("blocked", "cancelled"):
            return
        shown = result.result if result.error is None else result.error
        tool = find_tool(ctx, result.name)
        if tool is not None and result.outcome == "ok" and tool.may("write") and not tool.may("read"):
            read.created |= _new_ids(read, result.arguments, shown)
        self._add(ctx, read, result.name, result.arguments, shown)

    def _add(self, ctx: Any, read: _Read, name: str, arguments: Mapping[str, Any], result: Any) -> None:
        tool = find_tool(ctx, name)
        source = Source(name, arguments, _parsed(result), outside=tool is None or tool.may("network"))
        relays = tool is not None and tool.runs_agents and read.sources  # a subagent may repeat what it read
        if tool is not None and not tool.untrusted and not relays:
            read.trusted.append((source, len(read.sources)))
            return
        strings = [(key, value) for key, value in leaves("", arguments) if isinstance(value, str)]
        given = [value for _, value in strings if not _DATE.fullmatch(value)]
        words, handed = read.words, read.handed_over
        source.named = any(_PLACE.fullmatch(value) and words.contain(value) for value in given)
        source.designated = all(
            not value or words.contain(value) or words.name(value) or handed.contain(value) or _is_listed(value, read)
            for value in given
        )
        source.searched = tuple(identifying(value) for key, value in strings if is_reference(key, value, words))
        read.sources.append(source)

    # Judging.

    def _judge(self, ctx: Any, read: _Read, request: ToolCallRequest) -> HookResult | None:
        tool = find_tool(ctx, request.name)
        if tool is None or tool.runs_agents or not tool.may("write", "delete", "execute", "network"):
            return None
        if not ctx.ids.parent_run_id or ctx.ids.parent_run_id not in self._runs:
            for message in ctx.state.messages:  # a message may have been added while the run was under way
                if message.role == "user" and message.content not in read.texts:
                    self._hear(read, message)
        judge = _Judge(self.trusted, read, tool, request)
        read.made[request.id] = request.name, judge.targets, request.arguments
        if not read.sources:
            return None
        found = list(dict.fromkeys(judge.problems()))
        if not found:
            return None
        listed = "; ".join(found[:5])
        question = " ".join((f"{request.name}: {listed}.", *judge.candidates(), "Do you want this call?"))
        return HookResult.ask(question, reason=listed)


class _Judge:
    """Judges one call.

    Args:
        trusted: globs of values that are always fine.
        read: the conversation.
        tool: the tool that is called.
    """

    def __init__(self, trusted: Sequence[str], read: _Read, tool: ToolView, request: ToolCallRequest) -> None:
        self.trusted, self.read, self.tool = trusted, read, tool
        self.id, self.arguments = request.id, request.arguments
        self.values = [
            (name, value) for name, value in leaves("", request.arguments) if not self._is_option(name, value)
        ]
        self.words = read.words
        self.handed = read.handed_over
        self.about = self.words.about(tool.name)
        self.fetches = not tool.may("write", "delete", "execute")
        self.deletes = tool.may("delete") and tool.effects is not None
        self.plural = (self.about if self.deletes else self.words).wants_all
        self.questionable: set[str] = set()
        """The values because of which an approval is needed."""
        self._known: dict[tuple[frozenset[str], str], list[Record]] = {}

    def problems(self) -> list[str]:
        """Return the reasons to ask about the call."""
        if self.tool.may("execute"):
            return list(self._command())
        found = []
        if not (self.fetches or self.words.ask_for(self.tool.name) or self.handed.ask_for(self.tool.name)):
            found.append("your words do not ask for such an action")
        for name, value in self.values:
            found += self._value(name, value)
        if self.fetches:
            return found
        return found or [*self._copied(), *self._dictated()] or list(self._more_than_asked())

    def candidates(self) -> Iterator[str]:
        """Say for each value in question which values of its kind stand where it came from, and where.

        Somebody who is asked to pay a bill sees from this whether a second account stands in it.
        """
        seen: set[tuple[str, str]] = set()
        for _, value in self.values:
            text = f"{value:g}" if isinstance(value, float) else str(value)
            if text not in self.questionable:
                continue
            for what, kind in _CANDIDATES:
                if not kind.fullmatch(text):
                    continue
                for source in self.read.sources:
                    places = source.places(kind)
                    found = any(each.casefold() == text.casefold() or _is_same_number(each, text) for each in places)
                    if found and (what, source.label) not in seen:
                        seen.add((what, source.label))
                        yield _listed(what, source.label, places)
                break

    # What one request may cause.

    @cached_property
    def targets(self) -> frozenset[str]:
        """The values of the call that the user's words name; not those of "the largest", of which there is one."""
        chosen = [record for source in self.read.sources for record in source.extremes(self.words)]
        return frozenset(
            value.casefold()
            for name, value in ((name, str(value)) for name, value in self.values)
            if is_id_name(snake_case(name)) or not (_PROSE.search(snake_case(name)) or _DATE.fullmatch(value))
            if self._is_settled(name, value) and not any(value in record for record in chosen)
        )

    def _more_than_asked(self) -> Iterator[str]:
        """Check how often the request has caused such a call already.

        A call that deletes, or that reaches others, runs once for the same targets, unless the user asks for several.
        A call that only writes may be repeated: a file is often written in several steps.
        """
        if not self.tool.may("delete", "network"):
            return
        calls = [call for key, call in self.read.made.items() if key != self.id and call[0] == self.tool.name]
        if any(arguments == self.arguments for _, _, arguments in calls) and not self.about.repeat:
            yield "the same call ran already for this request"
            return
        most = None if self.handed.texts else self.words.most(self.tool.name)
        before = sum(targets == self.targets for _, targets, _ in calls)
        if most is not None and before >= most:
            calls_asked = "one such call" if most == 1 else f"{most} such calls"
            yield f"your words ask for {calls_asked}, and {before} ran already"

    # Values that an untrusted text dictates.

    def _copied(self) -> Iterator[str]:
        """Check the texts of the call: one that an untrusted text spells out is not the user's.

        A text of an entry or file that the user named may be passed on, unless the user gave the text.
        """
        given = self.about.quotations
        for name, value in self.values:
            if not isinstance(value, str) or not _WRITTEN.search(snake_case(name)) or len(tokens(value)) < _MIN_COPY:
                continue
            if self.words.contain_phrase(value) or any(each in value.casefold() for each in given):
                continue
            for source in self.read.sources:
                named = [] if given else [*([source.loose] if source.named else []), *self._designated(source)]
                for record in (source.loose, *source.records):
                    if not any(record is each for each in named) and any(copies(value, text) for text in record.texts):
                        yield f"the {name} is copied from a text of {source.tool}"

    def _dictated(self) -> Iterator[str]:
        """Check the call against untrusted texts that ask for the same kind of action as the user.

        The user's words allow the action, so each value that only such a text may have chosen needs a yes: a name from
        a list, a number that identifies something in a text to be sent, a text that repeats the request, and all texts
        of a call in which no value leads back to the user.
        """
        rivals = list(self._rivals())
        if not rivals:
            return
        texts = [(name, value) for name, value in self.values if isinstance(value, str)]
        open_values = [(name, value) for name, value in texts if not self._is_settled(name, value)]
        unrelated = len(open_values) == len(texts)
        known = self.words.tokens.union(*(tokens(value) for source in self.read.sources for value in source.values))
        for tool, text in rivals:
            why = f"and a text of {tool} asks for such an action too"
            for name, value in open_values:
                if not _PROSE.search(snake_case(name)) and not _DATE.fullmatch(value):
                    yield f"the {name} {value!r:.80} is not in your words, {why}"
                elif any(not self.words.contain(number) for number in _PRIVATE.findall(value)):
                    yield f"the {name} contains a number that is not in your words, {why}"
                elif unrelated and not (significant(value) - known).isdisjoint(significant(text)):
                    yield f"nothing in the call leads back to your words, {why}"
                elif _WRITTEN.search(snake_case(name)) and repeats(value, text, self.tool.name):
                    yield f"the {name} repeats what a text of {tool} asks for"

    def _rivals(self) -> Iterator[tuple[str, str]]:
        """Yield each untrusted text that asks for such an action, with its tool; not what the user asked to follow."""
        for source in self.read.sources:
            for record in (source.loose, *source.records):
                for text in record.texts:
                    if text not in self.handed.texts and demand(text, self.tool.name):
                        yield source.tool, text

    def _is_settled(self, name: str, value: str) -> bool:
        if self.words.name(value) or self.handed.name(value):
            return True
        return self._is_designated_id(name, value) if is_id_name(snake_case(name)) else self._is_designated(value)

    def _command(self) -> Iterator[str]:
        """A command may do anything. In a sandbox, it can do harm only through the network."""
        if not self.tool.sandbox:
            yield f"it may do anything, and the conversation contains text from {self.read.sources[-1].tool}"
            return
        for name, value in self.values:
            if isinstance(value, str):
                yield from self._links(name, value)

    def _is_option(self, name: str, value: Any) -> bool:
        """Return whether a value is the default of its parameter or one of a few that the tool lists."""
        schema = self.tool.spec.parameters
        about = schema.get("properties", {}).get(name, {})
        kinds = [about, *about.get("anyOf", ())]
        kinds += [schema.get("$defs", {}).get(kind["$ref"].rpartition("/")[2], {}) for kind in kinds if "$ref" in kind]
        return about.get("default") == value or any(value in kind.get("enum", ()) for kind in kinds)

    def _value(self, name: str, value: Any) -> Iterator[str]:
        kind = snake_case(name)
        if is_id_name(kind):
            yield from self._check(name, str(value), partial(self._is_designated_id, name))
        elif not isinstance(value, str):
            yield from self._number(name, float(value))
        elif AMOUNT.search(kind) and len(numbers := numbers_in(value)) == 1:
            yield from self._number(name, *numbers)
        elif _WHEN.search(kind) and any(moments(value)):
            yield from self._moment(name, value)
        elif _SECRET.search(kind):
            yield from self._check(name, value, self._is_designated)
        elif _PROSE.search(kind):
            if self.tool.may("network"):
                yield from self._links(name, value)
        elif not is_name(value):
            yield from self._check(name, value, self._is_given)
        elif _is_exact(value) and not _FILE_NAME.search(kind) and not self._is_new_file(value):
            yield from self._check(name, value, self._is_designated)
        elif _TARGET.search(kind):
            yield from self._target(name, value)
        elif not self._is_known_name(value) and not self._is_new(value):
            yield self._problem(name, value)

    def _target(self, name: str, value: str) -> Iterator[str]:
        """Yield the reasons to ask about a recipient, such as a user or a channel."""
        if _PHONE.fullmatch(value):
            yield from self._check(name, value, self._is_designated)
        elif EMAIL.search(value):  # with more around it
            for part in re.split("[,;]", value):
                found = _MAILBOX.fullmatch(part.strip())
                yield from self._check(name, found[1] if found else part.strip(), self._is_designated)
        else:
            yield from self._check(name, value, self._is_known_target)

    def _links(self, name: str, text: str) -> Iterator[str]:
        """A text that is sent must carry no link or account that only untrusted content contains."""
        for link in URL.findall(text):
            yield from self._check(f"link in {name}", link.rstrip(".,;:!?"), self._is_given)
        for account in ACCOUNT.findall(text):
            if self._in_prose(account):
                yield from self._check(f"account in {name}", account, self._is_given)

    def _number(self, name: str, value: float) -> Iterator[str]:
        """A number that stands in an untrusted text may be dictated, however short the text is.

        An amount is the user's, that of an entry which the call is about, or computed because the user asks for it.
        """
        trusted = (source.numbers for source, _ in self.read.trusted)
        if value in self.words.numbers.union(self.handed.numbers, *trusted):
            return
        if any(value in record.numbers for record in self._own_entries):
            return
        is_amount = AMOUNT.search(snake_case(name)) is not None
        for source in self.read.sources:
            if value in source.text_numbers and (is_amount or value not in source.numbers):
                self.questionable.add(f"{value:g}")
                yield f"the {name} {value:g} comes from the text of {source.label}"
                return
        if not is_amount or self.words.calculate or self.handed.calculate:
            return
        listing = next((source for source in self.read.sources if value in source.numbers), None)
        if listing is None:
            yield f"the {name} {value:g} is not in your words, nor in a result"
        else:
            self.questionable.add(f"{value:g}")
            yield f"the {name} {value:g} comes from an entry of {listing.label} that your words do not single out"

    def _moment(self, name: str, value: str) -> Iterator[str]:
        """A date or time that stands in an untrusted text, or in another entry, may be dictated.

        If the user gave a date, no other one is fine. If not, it may come from an entry or file that the user named.
        The end of what lasts an hour is computed from its start.
        """
        asked, mine = moments(value), self.words.moments
        lasts = self.words.time_is_open and any(
            moments(other).times & mine.times
            for name, other in self.values
            if isinstance(other, str) and other != value
        )
        known = Moments.union(
            (*(record.moments for record in self._own_entries), *(source.moments for source, _ in self.read.trusted))
        )
        named = [source for source in self.read.sources if source.named]
        for wanted, own, listed, is_open, part in (
            (asked.dates, mine.dates, known.dates, self.words.date_is_open, 0),
            (asked.times, mine.times, known.times, self.words.time_is_open, 1),
        ):
            for source in self.read.sources:
                if (is_open and source in named) or (part == 1 and lasts):
                    continue
                dictated = source.text_moments[part] if is_open else source.moments[part]
                if (wanted - own - (listed if is_open else frozenset())) & dictated:
                    yield f"the {name} {value!r:.80} comes from {source.label}, and is not in your words"
                    return

    @cached_property
    def _own_entries(self) -> list[Record]:
        """The entries that the call is about: the user's words single them out, or designate a value of the call."""
        found: list[Record] = []
        exact = [value for name, value in self.values if isinstance(value, str) and _is_pointer(name, value)]
        pointers = [value for value in exact if self._is_designated(value)]
        for source in self.read.sources:
            if source.designated:
                found += self._selected(source)
                found += (record for record in source.records if any(value in record for value in pointers))
        return found

    def _check(self, name: str, value: str, is_fine: Callable[[str], bool]) -> Iterator[str]:
        if not is_fine(value):
            yield self._problem(name, value)

    def _problem(self, name: str, value: str) -> str:
        self.questionable.add(value)
        return f"the {name} {value!r:.80} {self._origin(value)}"

    # Where a value may come from.

    def _is_given(self, value: str) -> bool:
        """Return whether the user, a trusted tool or this run itself gave this value."""
        plain = value.casefold().strip()
        bare = re.sub(r"^[a-z]+://", "", plain).rstrip("/")
        return (
            self.words.contain(value)
            or (bare != plain and self.words.contain(bare))
            or plain in self.read.created
            or any(fnmatchcase(plain, glob) for glob in self.trusted)
            or any(
                source.has(plain) and not self._repeats(source, before, plain) for source, before in self.read.trusted
            )
        )

    def _repeats(self, source: Source, before: int, value: str) -> bool:
        """Return whether a trusted result only repeats a value, as a note or a file does.

        Untrusted content had it first, or the model wrote it into the call, after untrusted content that may have
        spelled it out.
        """
        earlier = self.read.sources[:before]
        return any(each.has(value) for each in earlier) or (bool(earlier) and source.was_given(value))

    def _is_designated(self, value: str) -> bool:
        """Return whether a value is given, or a field of an entry that the user's words single out."""
        if self._is_given(value) or self._is_link_to_follow(value) or self._is_address_of_named(value):
            return True
        return any(
            record.refers_to(value) and self._is_undisputed(value, record)
            for source in self.read.sources
            if source.designated
            for record in self._designated(source)
        )

    def _is_designated_id(self, name: str, value: str) -> bool:
        """Return whether an id is given, or belongs to an entry that the user's words designate.

        A tool that works without the network acts on the entry itself. It may take several entries of one name, and
        all of a folder if the user wrote "all". Another tool may reach somebody through the id, such as the sender of
        the mail to which it replies, so that is judged like an address.
        """
        if self._is_designated(value):
            return True
        if self.tool.may("network") or _TARGET.search(_ID_SUFFIX.sub("", snake_case(name))):
            return False
        plain = value.casefold().strip()
        return any(
            field.is_own_id and str(field.value).casefold() == plain
            for source in self.read.sources
            if source.designated
            for record in self._selected(source)
            for field in record.fields
        )

    def _designated(self, source: Source) -> Iterator[Record]:
        """Yield the entries of a result that the user named, or that are the largest as the user asked for."""
        named = [(record, {field.key for field in self._names_of(record)}) for record in source.records]
        counts = Counter(key for _, keys in named for key in keys)
        for record, keys in named:
            # For a deletion, each name must single out its entry, or the words ask for the deletion of all.
            if keys and (not self.deletes or self.plural or any(counts[key] == 1 for key in keys)):
                yield record
        yield from source.extremes(self.words)
        yield from source.find()
        if not self.deletes:
            yield from self._collected(source)

    def _collected(self, source: Source) -> Iterator[Record]:
        """Yield all entries of a list if the user asks for the action on all of them: "pay all bills in the folder".

        The words must speak of what the tool, its arguments or its fields are called. If they state a number, the list
        must have that many entries. Messages of others are no such list: everybody can add one.
        """
        if not self.about.wants_all or len(source.groups) != 1:
            return
        (group,) = source.groups
        kinds = {token for word in (source.tool, *map(str, source.arguments.values())) for token in tokens(word)}
        kinds.update(token for record in group for field in record.fields for token in tokens(field.name))
        if all(any(EMAIL.fullmatch(value) for value in record.values) for record in group):
            kinds.update(("everybody", "everyone"))
        said = self.about.tokens & kinds - _GENERIC
        if said and self.about.count in (None, len(group)) and not any(record.is_message for record in group):
            yield from group

    def _selected(self, source: Source) -> Iterator[Record]:
        """Yield the entries that the user named, and those of a kind of which the user wants all."""
        yield from self._designated(source)
        if self.plural:
            yield from self._touched(source)

    def _touched(self, source: Source) -> Iterator[Record]:
        """Yield the entries that have words of the user in a field, such as all of a folder."""
        yield from (record for record in source.records if record.matches(self.words) or record.matches(self.handed))

    def _names_of(self, record: Record) -> list[Field]:
        return [*record.named_by(self.words), *record.named_by(self.handed)]

    @cached_property
    def _all_names(self) -> frozenset[frozenset[str]]:
        """The names by which the user refers to entries."""
        records = (record for source in self.read.sources for record in source.records)
        return frozenset(field.key for record in records for field in self._names_of(record))

    def _is_undisputed(self, value: str, record: Record) -> bool:
        """Return whether all entries of the name by which the user refers to an entry have the same value.

        "The Falcon budget" does not refer to an entry "Falcon" if there is an entry "Falcon budget".
        """
        names = {field.key for field in self._names_of(record)}
        return not names or any(
            not any(other.contradicts(record, value) for other in self._namesakes(name, value))
            and not any(name < longer for longer in self._all_names)
            for name in names
        )

    def _namesakes(self, name: frozenset[str], value: str) -> list[Record]:
        """Return the entries of a name without a value, of which there may be thousands, so they are kept."""
        if (name, value) not in self._known:
            records = (record for source in self.read.sources for record in source.records)
            self._known[name, value] = [each for each in records if each.is_known_by(name) and value not in each]
        return self._known[name, value]

    def _is_link_to_follow(self, value: str) -> bool:
        """Return whether a tool that only fetches opens a link in an entry that has words of the user in a field."""
        return self.fetches and any(
            mentions(record.text, value)
            for source in self.read.sources
            if source.designated and not source.outside
            for record in (*self._designated(source), *self._touched(source))
        )

    def _is_address_of_named(self, value: str) -> bool:
        """Return whether this is the only address in a named page or file that belongs to a person the user named."""
        if not EMAIL.fullmatch(value):
            return False
        texts = [source.text for source in self.read.sources if source.named or self._is_handed(source)]
        found = {address for text in texts for address in EMAIL.findall(text)}
        people = self.words.first_names | self.handed.first_names
        own = {address.rstrip(".") for address in found if people & set(tokens(address.partition("@")[0]))}
        return own == {value.casefold()}

    def _is_handed(self, source: Source) -> bool:
        return any(self.handed.contain(value) for _, value in leaves("", source.arguments) if isinstance(value, str))

    def _is_known_name(self, value: str) -> bool:
        """Return whether the user wrote this name, or it is in a list and no prose recommends it."""
        if self._is_designated(value) or self.words.name(value) or self.handed.name(value):
            return True
        if self.deletes or self._is_decided(value):
            return False
        return _is_listed(value, self.read) and not self._in_prose(value)

    def _is_decided(self, value: str) -> bool:
        """Return whether the user named another one of the list that contains this name."""
        if self.plural or self.words.superlatives or self.handed.texts:
            return False
        others = (other for source in self.read.sources for other in source.beside(value))
        return any(self.about.name(other) for other in others if is_name(other))

    def _is_known_target(self, value: str) -> bool:
        """Return whether the user named whom to address, or it is in a list and no prose recommends it."""
        if self._is_designated(value):
            return True
        is_in_prose = self._in_prose(value)
        for words in (self.words, self.handed):  # prose may join words from different places: "nora-falcon"
            if words.single_out(value) and (not is_in_prose or words.contain_phrase(value)):
                return True
        if self.deletes or is_in_prose or self._is_decided(value):
            return False
        authors = self.words.people
        return any(source.designated and source.offers(value, authors=authors) for source in self.read.sources)

    def _is_new(self, value: str) -> bool:
        """Return whether the model made up a name: it is in no result."""
        return not self.deletes and not any(source.has(value) for source in self.read.sources)

    def _is_new_file(self, value: str) -> bool:
        """Return whether a value that could be a host is the name of a new file."""
        return not self.tool.may("network") and _FILE.fullmatch(value) is not None and self._is_new(value)

    def _in_prose(self, value: str) -> bool:
        return any(source.recommends(value) for source in self.read.sources)

    def _origin(self, value: str) -> str:
        """Say where a value came from."""
        for source in reversed(self.read.sources):
            if mentions(source.text, value) or mentions(source.raw.casefold(), value):
                return f"comes from the text of {source.label}"
        for source in reversed(self.read.sources):
            if value.casefold().strip() in source.values:
                return f"comes from an entry of {source.label} that your words do not single out"
        return "is not in your words, nor in a result"


def _is_same_number(one: str, other: str) -> bool:
    """Return whether two texts are the same number, such as 98.7 and 98.70."""
    return len(found := numbers_in(one)) == 1 and found == numbers_in(other)


def _listed(what: str, where: str, places: Mapping[str, str]) -> str:
    """Return a sentence about the values of a kind in a result."""
    shown = [f"{value!r:.80} ({place})" for value, place in list(places.items())[:_MAX_CANDIDATES]]
    more = len(places) - len(shown)
    if len(places) == 1:
        return f"One {what} stands in the result of {where}: {shown[0]}."
    rest = f" and {more} more" if more else ""
    return f"{len(places)} {_PLURALS.get(what, f'{what}s')} stand in the result of {where}: {', '.join(shown)}{rest}."


def _is_pointer(name: str, value: str) -> bool:
    """Return whether a value identifies what a call is about: an id, an address or an account."""
    return is_id_name(snake_case(name)) or _is_exact(value) or _TARGET.search(snake_case(name)) is not None


def _is_exact(value: str) -> bool:
    """Return whether a value looks like an address, a URL or an account, of which each character counts."""
    if _DATE.fullmatch(value):
        return False
    return any(pattern.fullmatch(value) for pattern in (EMAIL, URL, _HOST, ACCOUNT))


def _is_listed(value: str, read: _Read) -> bool:
    """Return whether a value is a field or an item of a result to which the user's words led."""
    plain = value.casefold().strip()
    return any(source.designated and plain in source.values for source in read.sources)


def _new_ids(read: _Read, arguments: Mapping[str, Any], result: Any) -> set[str]:
    """Return the ids of the entries that a call made, without repeated arguments and accounts that were read before.

    A short id may well be that of something else too: a file 26 beside a mail 26.
    """
    made = Source("", {}, _parsed(result), outside=False)
    given = {str(value).casefold() for _, value in leaves("", arguments)}
    found = {str(field.value).casefold() for record in made.records for field in record.fields if field.is_own_id}
    return {each for each in found - given if not is_address(each) or not any(old.has(each) for old in read.sources)}


def _parsed(result: Any) -> Any:
    """Return the structure of a result that is JSON as text."""
    if isinstance(result, str) and result[:1] in ("{", "["):
        try:
            return json.loads(result)
        except (ValueError, RecursionError):
            return result
    return result
