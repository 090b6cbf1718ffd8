"""Dates and times of day in texts, however they are written."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_MONTHS = {
    month: number
    for number, names in enumerate(
        (
            "january jan", "february feb", "march mar", "april apr", "may", "june jun", "july jul", "august aug",
            "september sep sept", "october oct", "november nov", "december dec",
        ),
        1,
    )
    for month in names.split()
}  # fmt: skip
_ORDINALS = {
    word: number for number, word in enumerate(["first", "second", "third", "fourth", "fifth", "sixth", "seventh"], 1)
}
_MONTH, _DAY = rf"({'|'.join(_MONTHS)})\b\.?", rf"(\d{{1,2}}|{'|'.join(_ORDINALS)})(?:st|nd|rd|th)?\b"
_ISO = re.compile(r"(?<!\d)\d{4}[-/.](\d{1,2})[-/.](\d{1,2})(?!\d)")
_SHORT = re.compile(r"(?<![\d.:/-])(\d{1,2})(?:\.(\d{1,2})\.|/(\d{1,2})(?![\d/%])|/(\d{1,2})/)(?:\d{4}|\d\d)?(?!\d)")
"""30.5., 30.5.2026, 5/30 and 5/30/26; 5.30 is an amount."""
_MONTH_FIRST = re.compile(rf"\b{_MONTH}\s+(?:the\s+)?{_DAY}")
_DAY_FIRST = re.compile(rf"\b{_DAY}\s+(?:of\s+)?{_MONTH}")
_CLOCK = re.compile(r"(?<![\d:.+])(\d{1,2})(?::|[.h](?=\d\d\s*(?:uhr|h|[ap]\.?m)\b))(\d\d)(?!\d)\s*([ap]\.?m\b)?")
_HALF_DAY = re.compile(r"(?<![\d:.])(\d{1,2})\s*([ap])\.?m\b")
_HOUR = re.compile(r"\b(?:at|from|to|until|till|by|between|and)\s+(\d{1,2})(?![\d:%/-]|[.,]\d|\s*[a-z€$])")
_RELATIVE = re.compile(
    r"\b(?:today|tonight|tomorrow|yesterday|(?:mon|tues|wednes|thurs|fri|satur|sun)days?|weekends?|weeks?|months?|"
    r"days?|daily|weekly|monthly|year(?:s|ly)?|next|now)\b"
)
_LASTS = re.compile(
    r"\b(?:hours?|minutes?|mins?|hrs?|half|quarter|same time|morning|afternoon|evening|earlier|later|now)\b"
)


class Moments(NamedTuple):
    """The dates (month and day) and the times of day (hour and minute) in a text."""

    dates: frozenset[tuple[int, int]] = frozenset()
    times: frozenset[tuple[int, int]] = frozenset()

    @classmethod
    def union(cls, found: Iterable[Moments]) -> Moments:
        """Return all dates and times of several texts."""
        both = list(found)
        return cls(frozenset().union(*(each.dates for each in both)), frozenset().union(*(each.times for each in both)))


def moments(text: str) -> Moments:
    """Return the dates and times in a text. One that can be read in two ways counts as both."""
    text = text.casefold()
    dates = {(int(month), int(day)) for month, day in _ISO.findall(text)}
    for one, *rest in _SHORT.findall(text):
        other = "".join(rest)
        dates |= {(int(one), int(other)), (int(other), int(one))}
    dates |= {(_MONTHS[month], _day(day)) for month, day in _MONTH_FIRST.findall(text)}
    dates |= {(_MONTHS[month], _day(day)) for day, month in _DAY_FIRST.findall(text)}
    times: set[tuple[int, int]] = set()
    for hour, minute, half in _CLOCK.findall(_ISO.sub(" ", text).replace("t", " ")):
        times.add((_hour(hour, half), int(minute)))
    times |= {(_hour(hour, half), 0) for hour, half in _HALF_DAY.findall(text)}
    for hour in map(int, _HOUR.findall(text)):
        times |= {(hour, 0), (hour + 12, 0)}
    times |= {time for word, time in (("noon", (12, 0)), ("midnight", (0, 0))) if word in text}
    return Moments(
        frozenset((month, day) for month, day in dates if 1 <= month <= 12 and 1 <= day <= 31),
        frozenset((hour, minute) for hour, minute in times if hour < 24 and minute < 60),
    )


def leaves_date_open(text: str) -> bool:
    """Return whether a text speaks of a day that must be computed, such as "tomorrow"."""
    return _RELATIVE.search(text.casefold()) is not None


def leaves_time_open(text: str) -> bool:
    """Return whether a text speaks of a time that must be computed, such as the end of an hour."""
    return _LASTS.search(text.casefold()) is not None


def _day(text: str) -> int:
    return _ORDINALS.get(text) or int(text)


def _hour(text: str, half: str) -> int:
    hour = int(text)
    return hour % 12 + (12 if half.startswith("p") else 0) if half else hour
