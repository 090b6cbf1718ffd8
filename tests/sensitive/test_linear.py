"""The search for sensitive data takes linear time on any text, whole or in pieces. Work is counted, not timed."""

import re
import sys
from contextlib import contextmanager
from itertools import pairwise

import pytest

from hookline._sensitive import assignments, credentials, detectors, numbers, redactor
from hookline.hooks import Redactor

pytestmark = pytest.mark.slow

PIECES = [
    *("@", "a@", "a@b.", "@a", ":a@", "%40", "://", "a://", "a://b:c@"),
    *("1", "1 ", "4 ", "4111 ", "12-34-56-78 ", "1.", "1:", "::", "00", "(", "+", "+1", "+1 1 1 1 1 1 1 ", "tel: 1 "),
    *("DE89", "DE89 ", "AB12 3456 7890 1234 5678 90 ", "219 09 9998 ", "ssn 1"),
    *("a", "a ", " ", "\n", "-", "=", ".", "é", "é ", "密", "密1", "\u200b", "\u200b ", "\ud800", "\ud800 "),
    *("eyJ", "-eyJ", "eyJ.", "sk-", "A1b2", "A1/", "zzzzzzzzzzzzzzz1/", "aaaaaaaaaaaaaaaA1_", "glpat-aaaaaaaaaaaaaaA."),
    *("'", "' \" ", '\\"', '=\\"', "“", "password='", "password='a ", 'password="\\" ', "password=", "--password "),
    *("key", "api key", "bearer ", "hooks", "пароль: ", "密码", "is ", "contraseña es "),
    *("cookie:", "cookie: a=b; ", "a=b; ", "curl ", "curl -u a:b ", "http ", "login -p ", "-u '", "mysql -pa"),
    *("-----BEGIN ", "-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n"),
    *("-----BEGIN PRIVATE KEY-----\nAb1/Ab1/Ab1/Ab1/\n", "-----END X-----"),
]
SIZES = (3_000, 6_000)
HELD = ["1 ", "\u200b ", "cookie: a=b; ", "password='a ", "-----BEGIN PRIVATE KEY-----\nAb1/Ab1/Ab1/Ab1/\n", "a "]
FIRSTS = {"a=b; ": "cookie: ", '=\\"': "password ", "-u '": "curl "}


class Counted:
    """A regular expression that counts the characters that it was asked to look at."""

    def __init__(self, pattern, work):
        self._pattern, self._work = pattern, work

    def __getattr__(self, name):
        return getattr(self._pattern, name)

    def _called(self, name, text, pos=0, endpos=sys.maxsize):
        found = getattr(self._pattern, name)(text, pos, endpos)
        missed = 1 if name == "match" else min(endpos, len(text)) - pos
        self._work[0] += max(1, found.end() - pos if found else missed)
        return found

    def match(self, *given):
        return self._called("match", *given)

    def search(self, *given):
        return self._called("search", *given)

    def fullmatch(self, *given):
        return self._called("fullmatch", *given)

    def finditer(self, text, pos=0, endpos=sys.maxsize):
        self._work[0] += max(1, min(endpos, len(text)) - pos)
        return self._pattern.finditer(text, pos, endpos)


@contextmanager
def counted_work():
    """Count function calls and the characters given to regular expressions and to normalisation."""
    work = [0]

    def normalised(text):
        work[0] += len(text)
        return original(text)

    def calls(frame, event, arg):
        if event in ("call", "c_call"):
            work[0] += 1

    original = redactor.NormalizedText
    with pytest.MonkeyPatch.context() as patch:
        for module in (assignments, credentials, detectors, numbers, redactor):
            for name, value in list(vars(module).items()):
                if isinstance(value, re.Pattern):
                    patch.setattr(module, name, Counted(value, work))
        patch.setattr(redactor, "NormalizedText", normalised)
        before = sys.getprofile()
        sys.setprofile(calls)
        try:
            yield work
        finally:
            sys.setprofile(before)


def text_of(piece, size):
    return FIRSTS.get(piece, "") + piece * (size // len(piece))


def is_linear(work):
    """Whether the work at most doubles with the size. What one look costs at most is allowed on top."""
    return all(after <= 2.3 * before + 20_000 for before, after in pairwise(work))


@pytest.mark.parametrize("piece", PIECES)
def test_the_work_for_a_text_grows_in_proportion_to_its_length(piece):
    searcher, work = Redactor(), []
    searcher.apply(piece)
    for size in SIZES:
        with counted_work() as count:
            searcher.apply(text_of(piece, size))
        work.append(count[0])
    assert is_linear(work), work


@pytest.mark.parametrize("piece", [*HELD, *PIECES])
def test_the_work_for_a_stream_grows_in_proportion_to_its_length(piece):
    assert is_linear(streamed_work(Redactor(), piece))


@pytest.mark.parametrize("piece", ["a ", "-----BEGIN PRIVATE KEY-----\n"])
def test_the_work_for_a_stream_of_one_line_with_extra_kinds_grows_in_proportion_to_its_length(piece):
    assert is_linear(streamed_work(Redactor(extra={"pair": re.compile("never such a text")}), piece))


def streamed_work(searcher, piece):
    work = []
    searcher.apply(piece)
    for size in SIZES:
        text, stream = text_of(piece, size), searcher.stream()
        with counted_work() as count:
            for at in range(0, len(text), 4):
                stream.feed(text[at : at + 4])
            stream.finish()
        work.append(count[0])
    return work


def test_many_keys_that_become_equal_are_renamed_in_linear_work():
    work = []
    for size in (500, 1000):
        value = {f"user{number}@example.com": number for number in range(size)}
        with counted_work() as count:
            cleaned = Redactor(["email"]).apply_to(value)
        work.append(count[0])
        assert len(cleaned) == size
    assert is_linear(work), work
