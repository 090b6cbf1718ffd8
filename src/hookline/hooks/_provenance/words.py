"""The user's words: the names and values in them, and the actions that they ask for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Set
from functools import cached_property
from itertools import takewhile
from typing import NamedTuple

from .moments import Moments, leaves_date_open, leaves_time_open, moments

_TOKEN = re.compile(r"[^\W_]+")
_NUMBER = re.compile(
    r"(?<![\w.,-])(\d{1,3}(?:([.,'\u00a0\u202f ])\d{3})+|\d+)([.,]\d{1,4})?"
    r"(?:\s?(k)\b|(?=(?:eur|euros?|usd|dollars?|gbp|pounds?|chf|francs?)\b)|(?![\w-]|[.,]\d))",
    re.IGNORECASE,
)
_UNITS = {
    word: number
    for number, word in enumerate(
        [
            "zero",
            "one",
            "two",
            "three",
            "four",
            "five",
            "six",
            "seven",
            "eight",
            "nine",
            "ten",
            "eleven",
            "twelve",
            "thirteen",
            "fourteen",
            "fifteen",
            "sixteen",
            "seventeen",
            "eighteen",
            "nineteen",
        ]
    )
} | {
    word: 10 * tens
    for tens, word in enumerate(["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"], 2)
}
_SCALES = {"hundred": 100, "thousand": 1000, "million": 1_000_000}
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}")
URL = re.compile(
    r"(?<![a-z0-9+.-])[a-z][a-z0-9+.-]{0,20}://[^\s<>\"'`)\]]+|"
    r"(?<![\w.@-])(?:www\.[^\s<>\"'`)\]]+|"
    r"(?:(?:[a-z0-9-]{1,63}\.){1,8}[a-z]{2,24}|(?:\d{1,3}\.){3}\d{1,3})(?::\d{1,5})?/[^\s<>\"'`)\]]*)",
    re.IGNORECASE,
)
ACCOUNT = re.compile(r"\b(?=(?:[A-Za-z]*\d){5})[A-Za-z0-9]{8,64}\b")


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_ACTIONS = (
    "send email mail write message dm tell reply respond answer forward notify inform post publish submit contact text "
    "ping remind announce",
    "send pay transfer refund wire reimburse buy purchase order donate",
    "share send grant upload publish",
    "create add make set setup schedule book plan arrange organise organize generate draft write save put insert "
    "register open start",
    "reserve book make arrange schedule",
    "update change adjust modify edit set reschedule move rename replace correct fix postpone shift extend increase "
    "reduce mark switch",
    "append add write insert extend update put",
    "add invite join onboard include assign",
    "write edit update change fix implement refactor improve complete build develop document translate format correct",
    "delete remove cancel erase drop clear discard trash revoke unsubscribe kick uninstall",
)
"""English verbs for the same action, a group in each line. A tool's verb allows any verb of its groups."""

_ALSO_NOUNS = _set(
    "email mail message text post book order change share answer reply contact set start move plan mark switch fix "
    "increase reduce save transfer purchase draft schedule update report note cancel"
)
"""Verbs that are also nouns: they ask for an action only where a verb can stand."""

_ANSWERS = _set("tell answer inform write show respond reply")
"""Verbs that ask for an answer, and for no action, before "me": "tell me when ..."."""

_BEFORE_VERBS = _set("please and then to or also just you now kindly first finally can could should must i")

_BEFORE_COMMANDS = _set("please and then also just now kindly first finally must should to you")

_READING = _set("get list fetch read search find show check view load look")

_NO_ACTIONS = _READING | _set(
    "is are was were has have contain say says summarise summarize translate use analyse analyze compare explain "
    "describe extract count know see watch"
)
"""Verbs that ask for no action. A clause with one is not part of the request before it."""

_SMALL_WORDS = _set(
    "a an and are as at be by can do for from has have her his how i if in into is it its just me my no not of on or "
    "our please so than that the their them then there they this to up was we what when where which who will with you "
    "your all any each every one two new old also via"
)

_KINDS = _set(
    "account address agenda app appointment archive area article attachment bill body box calendar channel chat "
    "comment company contact content conversation copy data detail doc document entry event file folder form group "
    "image inbox info information instruction invoice issue item link list log mailbox meeting memo name news "
    "newsletter notice notification number office outbox page paper payment photo picture point problem profile "
    "project question reminder report request response result review room section service site spam statement "
    "status story subject summary system table tag task team thing thread ticket title todo topic transaction trash "
    "url website word work "
    # People, by what they are to the user.
    "admin assistant boss chief client colleague customer employee everybody everyone friend guest manager member "
    "owner partner people person recipient sender staff support user "
    # Times.
    "april august daily date day december february friday hour january july june later march may monday month "
    "monthly morning night november october saturday september sunday thursday time today tomorrow tuesday "
    "wednesday week weekly year yesterday "
    # Adjectives of entries.
    "active available best big cheapest closed confirmed current done earliest favourite final first free general "
    "good great hello high highest important inactive interesting large largest last latest least long longest low "
    "lowest main many more most newest next oldest other overdue own paid pending personal private public ready "
    "received recent regular relevant same second sent several short shortest small smallest some third top total "
    "unpaid unread upcoming urgent useful whole "
    # Further actions of agents on texts, and adverbs.
    "analyse analyze asap ask attach attention brief briefly bullet classify collect combine compare compile concise "
    "count dear deadline decision describe digest download english everything explain extract feedback follow format "
    "formal french friendly german go handle help here highlight idea immediately incoming key know let like line "
    "merge need outgoing overview paragraph polite print priority process provide quick rank recap regard see "
    "sentence sort spanish style summarise summarize takeaway thank think tldr tone translate try use visit want"
)
"""Words for kinds of things, people, times and requests. They name nothing, except in quotation marks."""

_FULL_NAME = r"[A-Z][\w-]+(?:\s+(?:and\s+)?[A-Z][\w-]+){0,6}"
_FROM = re.compile(rf"\b(?:from|by)\s+({_FULL_NAME})")
_OWN_NAME = re.compile(
    rf"(?i:\bi am|\bi'm|\bmy name is|\bsign(?:ed)?(?: it)?(?: as| with| by)?|\bregards,?)\s+{_FULL_NAME}"
)
"""The name of the user, which others know."""
_TO = r"(?<!reply )(?<!respond )(?<!answer )to"
_ADDRESSED = re.compile(
    rf"(?i:\b(?:send|e-?mail|mail|message|tell|notify|inform|cc|bcc|{_TO}))\s+{_FULL_NAME}|"
    r"\b(?:for|with)\s+[A-Z][\w-]+\s+[A-Z][\w-]+"
)
"""Recipients in the words of the user. They do not refer to an entry."""

_ADDRESSED_IN_LOWER_CASE = re.compile(rf"\b{_TO}\s+([a-z][\w-]*)(?:\s+[a-z][\w-]*)?")

_PEOPLE = _set("author everybody everyone member participant people person poster sender user who whoever writer")

_QUOTED = re.compile(
    r"[\"\u201c\u201d\u00ab\u00bb]([^\"\u201c\u201d\u00ab\u00bb\n]{1,200})[\"\u201c\u201d\u00ab\u00bb]|"
    r"(?<!\w)['\u2018\u201a]([^\n]{1,200}?)['\u2019\u2018](?!\w)"
)

_RUN = 4
"""So many words in the same order are no coincidence."""

MAX_VALUE = 1000
"""Characters of a value that is searched in texts. A longer one counts as unknown, which bounds the time."""

_TELLING_DIGITS = 4
_LONG_ID = 6
_BEFORE_ID = (
    r"(?:\b(?:id|number|no|nr|issue|ticket|order|event|file|page|item|case|invoice|payment|document)s?\b[.:]?\s*|"
    r"#|['\"])['\"#]?"
)
"""Before a short number that identifies something; any other number may be an amount, a time or a day."""

_HAND_OVER = re.compile(
    r"\b(?:do|follow|perform|execute|complete|handle|carry out)\b(?!\s+the\s+following)[^.:\n]{0,30}"
    r"\b(?:instruction|action|task|to-?do|step|request)s?\b|"
    r"\b(?:find|see|get|read|are)\b[^.:\n]{0,20}\b(?:details|instructions)\b[^.:\n]{0,10}\b(?:in|on|at|from)\b",
    re.IGNORECASE,
)
"""A reference to instructions that are elsewhere, such as "do the tasks in Bob's message"."""

_SIZE, _LENGTH = "size|bytes|area|amount", "length|duration|minutes|hours|words|pages"
_NAMED = "(?!)"
_TIME = "date|time|timestamp|created|modified|updated|received|sent|at|on"
_MOST = {
    "largest": (max, _SIZE), "biggest": (max, _SIZE), "smallest": (min, _SIZE), "heaviest": (max, "weight"),
    "longest": (max, _LENGTH), "shortest": (min, _LENGTH), "cheapest": (min, "price|cost|fee|fare|rate|amount|total"),
    "latest": (max, _TIME), "newest": (max, _TIME), "oldest": (min, _TIME), "earliest": (min, _TIME),
    "highest": (max, _NAMED), "most": (max, _NAMED), "lowest": (min, _NAMED), "least": (min, _NAMED),
    "fewest": (min, _NAMED), "best": (max, "rating|score|stars"),
}  # fmt: skip
"""Superlatives, each with its meaning and the names of the fields that it is usually about.

The name of the field follows those with ``_NAMED``: "the most links".
"""
_SUPERLATIVE = re.compile(rf"(?<!at )(?<!your )(?<!\w)({'|'.join(_MOST)})(?!\w| of)([^.,;:!?()\n]{{0,60}})")


_PLURAL = frozenset(("all", "each", "every", "both"))
_EVERYBODY = frozenset(("everybody", "everyone"))
_SEVERAL = frozenset(("several", "some", "many", "few", "multiple", "twice", "again", "time", "one", "another", "per"))
"""Words of a request for more than one action, beside plurals and numbers."""
_MEASURES = frozenset(
    [
        "dollar",
        "euro",
        "pound",
        "franc",
        "cent",
        "hour",
        "minute",
        "second",
        "day",
        "week",
        "month",
        "year",
        "new",
        "thank",
        "regard",
        "detail",
        "doe",
    ]
)
"""Plurals of amounts and times, and words that only look like plurals: none of them asks for several actions."""
_COUNTED = re.compile(
    rf"(?<![\w.,:/-])(\d{{1,2}}|{'|'.join(w for w, n in _UNITS.items() if n > 1)})\s+([a-z]+)(?:\s+([a-z]+))?"
)
_FILE = re.compile(r"\S*\w\.\w{1,5}\b")
_CLAUSE = re.compile(r"[,;:!?\n]|\.(?=\s|$)|\b(?:and|then|but)\b")
_CALCULATES = re.compile(
    r"%|\b(?:percent|half|third|quarter|tenth|double|triple|twice|difference|differ|sum|total|average|split|share|rest|"
    r"remaining|remainder|minus|plus|less|more|extra|each|per|increase|raise|reduce|lower|adjust|discount|calculate|"
    r"compute|convert|round|together|too (?:much|little)|missing|tip)\w*\b"
)


def tokens(text: str) -> list[str]:
    """Return the words of a text in lower case, a plural as its singular."""
    return [_singular(word) for word in _TOKEN.findall(_CAMEL.sub(" ", text).casefold())]


def significant(text: str) -> frozenset[str]:
    """Return the words of a text that can identify something."""
    return frozenset(word for word in tokens(text) if len(word) > 2 and word not in _SMALL_WORDS and not word.isdigit())


def identifying(text: str) -> frozenset[str]:
    """Return the words and numbers that distinguish a name from others."""
    text = _without_suffix(text)
    return significant(text) | {word for word in tokens(text) if word.isdigit()}


def is_address(value: str) -> bool:
    """Return whether a value is an e-mail address, a URL or an account."""
    return any(pattern.fullmatch(value.strip()) for pattern in (EMAIL, URL, ACCOUNT))


def numbers_in(text: str) -> frozenset[float]:
    """Return the numbers in a text, in figures and in English words. "1.500" counts as both of its readings."""
    found: set[float] = set()
    for whole, separator, decimals, thousand in _NUMBER.findall(text):
        number = float(re.sub(r"\D", "", whole)) + (float(f"0.{decimals[1:]}") if decimals else 0.0)
        found.add(number * (1000 if thousand else 1))
        if separator and separator in ".,":
            found.add(float(whole.replace(separator, ".")) if whole.count(separator) == 1 else number)
    return frozenset(found | _spelled_numbers(text))


def _spelled_numbers(text: str) -> set[float]:
    """Return the numbers from thirteen on that a text spells out: "seven thousand three hundred"."""
    found: set[float] = set()
    total = current = 0
    for word in [*_TOKEN.findall(text.casefold()), ""]:
        if word in _UNITS:
            current += _UNITS[word]
        elif word in _SCALES and (current or total):
            current *= _SCALES[word]
            if _SCALES[word] > 100:
                total, current = total + current, 0
        elif word != "and" or not current:
            found.add(float(total + current))
            total = current = 0
    return {number for number in found if number > 12}


def _singular(word: str) -> str:
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


class Superlative(NamedTuple):
    """A choice of the one with the largest or smallest number."""

    choose: Callable[[Iterable[float]], float]
    usual: str
    """Alternatives of a pattern for the names of fields that it is usually about."""
    words: frozenset[str]
    """The words after it, such as the name of a field."""

    @property
    def needs_field(self) -> bool:
        """Whether it is about certain fields, and so not about any number, as "latest" and "most" are."""
        return self.usual in (_TIME, _NAMED)


class Words:
    """Texts that the user wrote.

    Example:
        >>> words = Words(["Please pay the rent."])
        >>> words.ask_for("send_money")
        True
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.texts = tuple(texts)

    @cached_property
    def text(self) -> str:
        """All texts."""
        return "\n".join(self.texts)

    @cached_property
    def _folded(self) -> str:
        return self.text.casefold()

    @cached_property
    def tokens(self) -> frozenset[str]:
        """The words in the texts."""
        return frozenset(token for text in self.texts for token in tokens(text))

    @cached_property
    def numbers(self) -> frozenset[float]:
        """The numbers in the texts."""
        return frozenset(number for text in self.texts for number in numbers_in(text))

    @cached_property
    def hand_over(self) -> bool:
        """Whether the user refers to instructions that are elsewhere, such as the tasks in a message."""
        return any(_HAND_OVER.search(text) for text in self.texts)

    @cached_property
    def authors(self) -> tuple[frozenset[str], ...]:
        """The people from whom the user says that a message is: "the mail from Ann Lee"."""
        return tuple(frozenset(tokens(name)) for text in self.texts for name in _FROM.findall(text))

    @cached_property
    def superlatives(self) -> tuple[Superlative, ...]:
        """The kinds of which the user asks for the largest or latest one. "The latest mails" are several."""
        found = []
        for word, after in _SUPERLATIVE.findall(self._folded):
            phrase = list(takewhile(lambda each: each not in _SMALL_WORDS, _TOKEN.findall(after)))
            choose, usual = _MOST[word]
            if usual == _NAMED or all(_singular(each) == each for each in phrase):
                found.append(Superlative(choose, usual, frozenset(map(_singular, phrase))))
        return tuple(found)

    @cached_property
    def _name_tokens(self) -> frozenset[str]:
        """The words in the texts that can be of a name, so not those of addresses."""
        return frozenset(tokens(_without((EMAIL, URL, _OWN_NAME), self.text)))

    @cached_property
    def _message_tokens(self) -> frozenset[str]:
        """The names that can be of a message: "send it to Ann Lee" does not refer to one of Ann Lee."""
        text = _without((EMAIL, URL, _OWN_NAME, _ADDRESSED), self.text)
        text = _ADDRESSED_IN_LOWER_CASE.sub(lambda found: " " if _is_telling(found[1]) else found[0], text)
        return frozenset(tokens(text))

    @cached_property
    def first_names(self) -> frozenset[str]:
        """The words that may name a person: capitalised, though no sentence begins with them."""
        text = _without((EMAIL, URL, _OWN_NAME), self.text)
        found = re.findall(r"(?<=[\w,'\"(] )[A-Z][a-z]{2,}\b", text)
        return frozenset(word for word in tokens(" ".join(found)) if _is_telling(word))

    @cached_property
    def _quoted(self) -> frozenset[str]:
        return frozenset("".join(found).casefold().strip() for found in _QUOTED.findall(self.text))

    @cached_property
    def _verbs(self) -> frozenset[str]:
        return frozenset(verb for text in self.texts for verb in _verbs(text))

    def contain(self, value: str) -> bool:
        """Return whether the user wrote this value, as a whole."""
        wanted = value.casefold().strip()
        if not wanted:
            return True
        if len(wanted) > MAX_VALUE or wanted not in self._folded:
            return False
        before = _BEFORE_ID if wanted.isdigit() and len(wanted) < _LONG_ID else r"(?<![\w@.-])"
        # A sentence may follow without a space; a further part of a host name is in lower case.
        return re.search(rf"(?i:{before}{re.escape(wanted)})(?![\w@-]|\.[a-z0-9])", self.text) is not None

    def name(self, value: str) -> bool:
        """Return whether the user wrote all significant words of this name."""
        wanted = significant(_without_suffix(value))
        return bool(wanted) and wanted <= self.tokens

    def single_out(self, value: str, *, of_message: bool = False) -> bool:
        """Return whether the user wrote this name of an entry, which may be a message.

        All its words and numbers are in the texts, and one of them is more than a word for a kind of thing; a text
        "Summary" or "Unread mails" is a name only in quotation marks. A file name is one as it is.
        """
        if _FILE.fullmatch(value.strip()) and not EMAIL.search(value) and self.contain(value):
            return True
        wanted = identifying(value)
        if not wanted or not wanted <= (self._message_tokens if of_message else self._name_tokens):
            return False
        return any(map(_is_telling, wanted)) or value.casefold().strip() in self._quoted

    def contain_phrase(self, name: str) -> bool:
        """Return whether the user wrote the words of a name one after another."""
        wanted = " ".join(tokens(name))
        return any(f" {wanted} " in f" {' '.join(tokens(text))} " for text in self.texts)

    def mention_source(self, address: str) -> bool:
        """Return whether the user refers to what came from an address: "from ann@…", "ann@…'s mail", not "to ann@…"."""
        wanted = address.casefold().strip()
        if len(wanted) > MAX_VALUE or wanted not in self._folded:
            return False
        found = rf"(?<![\w@.+-]){re.escape(wanted)}(?![\w@-]|\.[a-z0-9])"
        before = r"\b(?:from|by|of)\s+['\"\u201c\u2018<(]?"
        return re.search(rf"{before}{found}|{found}['\u2019]s\b", self._folded) is not None

    def about(self, tool: str) -> Words:
        """Return the clauses that ask for an action like that of the tool, each with those after it without a verb."""
        verbs, found, wanted = _tool_verbs(tool), list[str](), False
        for clause in (clause for text in self.texts for clause in _CLAUSE.split(text)):
            said = set(_verbs(clause))
            if said or not _NO_ACTIONS.isdisjoint(_TOKEN.findall(clause.casefold())):
                wanted = not verbs.isdisjoint(said)
            if wanted:
                found.append(clause)
        return Words(found)

    @property
    def wants_all(self) -> bool:
        """Whether the texts speak of all of something, or of everybody."""
        return not self.tokens.isdisjoint(_PLURAL | _EVERYBODY)

    @cached_property
    def count(self) -> int | None:
        """The number of things that the texts state: "all three bills", "both files"; no amount and no time."""
        if "both" in self.tokens:
            return 2
        for number, *nouns in _COUNTED.findall(self._folded):
            if any(_singular(noun) != noun and _singular(noun) not in _MEASURES for noun in nouns):
                return _UNITS.get(number) or int(number)
        return None

    def most(self, tool: str) -> int | None:
        """Return how many actions like that of the tool the user asks for, for one target; ``None`` for several.

        Each clause with such a verb asks for one. A plural, a number or a word such as "each" asks for several.
        """
        about = self.about(tool)
        plain = _without((EMAIL, URL, _FILE, _QUOTED), about.text)
        said = [word for word in _TOKEN.findall(plain) if not word[0].isupper()]  # a name may end in "s"
        plural = [word for word in said if _singular(word) != word and _singular(word) not in _MEASURES]
        if about.wants_all or about.count or plural or not _SEVERAL.isdisjoint(map(_singular, said)):
            return None
        verbs = _tool_verbs(tool)
        named = [{_FORMS.get(word) for word in tokens(clause)} for clause in about.texts]  # "a mail" is a mail as well
        return max(1, sum(not verbs.isdisjoint(each) for each in named))

    @property
    def repeat(self) -> bool:
        """Whether the texts ask for the same more than once."""
        return self.count is not None or not self.tokens.isdisjoint(("twice", "again", "time"))

    @cached_property
    def calculate(self) -> bool:
        """Whether the user speaks of a number that must be computed."""
        return _CALCULATES.search(self._folded) is not None

    @cached_property
    def moments(self) -> Moments:
        """The dates and times in the texts."""
        return Moments.union(map(moments, self.texts))

    @cached_property
    def date_is_open(self) -> bool:
        """Whether the user speaks of a day that must be computed, or of none."""
        return not self.moments.dates or leaves_date_open(self.text)

    @cached_property
    def time_is_open(self) -> bool:
        """Whether the user speaks of a time that must be computed, or of none."""
        return not self.moments.times or leaves_time_open(self.text)

    @cached_property
    def quotations(self) -> tuple[str, ...]:
        """The texts of several words in quotation marks."""
        return tuple(each for each in self._quoted if len(each.split()) > 1)

    @cached_property
    def people(self) -> bool:
        """Whether the user speaks of people whose names are in a result, such as "the user who wrote most"."""
        return not self.tokens.isdisjoint(_PEOPLE)

    def ask_for(self, tool: str) -> bool:
        """Return whether the user asked for an action like that of the tool with this name.

        Without a known verb in its name, the user must have written the other words of the name.
        """
        verbs = _tool_verbs(tool)
        return not verbs.isdisjoint(self._verbs) if verbs else significant(tool) - _READING <= self.tokens


def demand(text: str, tool: str) -> bool:
    """Return whether a text tells its reader to do something like the action of the tool with this name.

    This is narrower than :meth:`Words.ask_for`: prose of strangers mentions many actions, and only a command counts.
    """
    verbs = _tool_verbs(tool)
    return any(verb in verbs for verb in _commands(text)) if verbs else significant(tool) <= set(tokens(text))


def copies(value: str, text: str) -> bool:
    """Return whether a text contains another one word for word, beside other words."""
    wanted, words = tokens(value), tokens(text)
    return len(words) > len(wanted) and f" {' '.join(wanted)} " in f" {' '.join(words)} "


def repeats(value: str, text: str, tool: str) -> bool:
    """Return whether a text mostly consists of a sentence that asks for the action of a tool."""
    words = tokens(value)
    for sentence in re.split(r"[.!?](?=\s|$)|\n", text):
        if demand(sentence, tool):
            told = tokens(sentence)
            runs = {tuple(told[i : i + _RUN]) for i in range(len(told) - _RUN + 1)}
            shared = any(tuple(words[i : i + _RUN]) in runs for i in range(len(words) - _RUN + 1))
            if shared and sum(word in told for word in words) >= len(words) * 2 / 3:
                return True
    return False


def _tool_verbs(tool: str) -> Set[str]:
    """Return the verbs for the action of a tool; none if its name contains no known verb."""
    parts = tokens(tool)
    verbs = [part for part in parts if part in _SYNONYMS and (part == parts[0] or part not in _ALSO_NOUNS)]
    return _SYNONYMS[verbs[0]] if verbs else frozenset()


def _without_suffix(value: str) -> str:
    return re.sub(r"\.\w{1,5}$", "", value.strip())


def _synonyms() -> dict[str, Set[str]]:
    found: dict[str, set[str]] = {}
    for line in _ACTIONS:
        group = line.split()
        for verb in group:
            found.setdefault(verb, {verb}).update(group)
    return dict(found)


_SYNONYMS = _synonyms()
_FORMS = {
    form: verb
    for verb in _SYNONYMS
    for form in (verb, f"{verb}ed", f"{verb}d", f"{verb}ing", f"{verb.removesuffix('e')}ing", f"{verb}{verb[-1]}ing")
}
_COMMON = frozenset(_singular(word) for word in (*_KINDS, *_READING, *_FORMS, *_SMALL_WORDS))


def _is_telling(word: str) -> bool:
    """Return whether a word can tell an entry from others; a year or a short number cannot."""
    if word.isdigit():
        return len(word) >= _TELLING_DIGITS and not (len(word) == _TELLING_DIGITS and word[:2] in ("19", "20"))
    return word not in _COMMON


def _without(patterns: Iterable[re.Pattern[str]], text: str) -> str:
    for pattern in patterns:
        text = pattern.sub(" ", text)
    return text


def _verbs(text: str) -> Iterable[str]:
    """Yield the verbs of actions in a text. A word that is also a noun counts where a verb can stand."""
    for sentence in re.split(r"[.!?;:,\n()\"]|\b\d+\.", text.casefold()):
        found = re.findall(r"[a-z]+", sentence.replace("e-mail", "email"))
        for before, word, after in zip(["", *found], found, [*found[1:], ""], strict=False):
            verb = _FORMS.get(word)
            if verb is None or (verb in _ALSO_NOUNS and before and before not in _BEFORE_VERBS):
                continue
            if not (verb in _ANSWERS and after in ("me", "us")):
                yield verb


def _commands(text: str) -> Iterable[str]:
    """Yield the verbs of actions that a text tells its reader to do: at the start of a clause, or after "please"."""
    for clause in re.split(r"[.!?;:,\n()\"]|\b\d+\.", text.casefold()):
        found = re.findall(r"[a-z]+", clause.replace("e-mail", "email"))
        for before, word in zip(["", *found], found, strict=False):
            if word in _SYNONYMS and (not before or before in _BEFORE_COMMANDS):
                yield word
