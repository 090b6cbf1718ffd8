"""Redactor: sensitive values in texts, JSON and streams."""

import re
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import RegistrationError
from hookline._sensitive.redactor import RedactedStream
from hookline.hooks import Redactor
from tests.cases import each_case
from tests.properties import examples

KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7bq98\nfoo bar\n-----END RSA PRIVATE KEY-----"
VALUES = [
    "bob.smith@example.co.uk",
    "+49 30 1234567",
    "(415) 555-2671",
    "4111 1111 1111 1111",
    "4111\u200b1111\u200b1111\u200b1111",
    "378282246310005",
    "DE89 3704 0044 0532 0130 00",
    "203.0.113.7",
    "2001:db8::1",
    "ghp_1234567890abcdefghijABCDEFGHIJ123456",
    "password=hunter2",
    'password: "correct horse 9 battery"',
    "Bearer abcdefghij1234567890",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-def_123",
    "https://u:p4ss@host.com/x",
    "tel: 020 7946 0958",
    "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    'password: "correct horse battery"',
    '{\\"password\\": \\"correct horse\\"}',
    "password = 'corr\\'ect horse'",
    "password=letmein",
    "--password letmein",
    "curl -u 'bob:sword fish' x",
    "curl -u bob:swordfish x",
    "Cookie: sid=abcdef; theme=dark; x=1",
    "Set-Cookie: sid=abcdef; Path=/",
    "密码：hunter2",
    "Das Kennwort lautet hunter22",
    "219 09 9998",
    "SSN: 219099998",
    "postgres://bob:p@ss@db.example.com/x",
    KEY,
]
SCRAPS = [
    "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN",
    "2024",
    "12",
    "4111 1111",
    "is",
    "the",
    "Hello,",
    "world.",
    "邮箱",
    "x",
    "key",
    "token:",
    "'",
    '"',
    "`",
    "=",
    ":",
    "+1",
    "00",
    "(",
    "AB12",
    "GB29",
    "NWBK",
    "-",
    "\u200b" * 3,
    "\ud800",
    "\udc00",
    "e\u0301",
    "password",
    "secret is",
    "phone",
    "version",
    "://",
    "bob@",
    "@example.com",
    "sha512-",
    "\\",
    '\\"',
    "“",
    "curl",
    "-u",
    "Cookie:",
    "a=bcde;",
    "sid=",
    "--password",
    "passwort:",
    "\n",
    "\x00",
    "é",
]
SPACES = [" ", " ", " ", "\n", "", "  ", ", ", "。", "\t", "\u00a0", "\r\n", "\u2028"]
TEXTS = st.lists(
    st.tuples(
        st.one_of(st.sampled_from(VALUES), st.sampled_from(SCRAPS), st.text(max_size=8)), st.sampled_from(SPACES)
    ),
    max_size=14,
).map(lambda parts: "".join(part + space for part, space in parts))


def streamed(redactor, text, cuts):
    stream, out, at = redactor.stream(), [], 0
    for size in cuts:
        out.append(stream.feed(text[at : at + size]))
        at += size
    return "".join([*out, stream.feed(text[at:]), stream.finish()])


# Replacements


@pytest.mark.parametrize(
    ("value", "masked"),
    [
        ("bob@example.com", "b***@example.com"),
        ("bob%40example.com", "b***@example.com"),
        ("4111 1111 1111 1111", "****1111"),
        ("+49 30 1234567", "****4567"),
        ("DE89 3704 0044 0532 0130 00", "****3000"),
        ("203.0.113.7", "[ip]"),
        ("ghp_1234567890abcdefghijABCDEFGHIJ123456", "[secret]"),
    ],
)
def test_a_masked_value_keeps_a_recognisable_part(value, masked):
    assert Redactor(action="mask").apply(f"a {value} b") == f"a {masked} b"


def test_a_redacted_value_is_replaced_by_its_kind():
    text = "bob@example.com, 4111111111111111, password=hunter2"
    assert Redactor().apply(text) == "[email], [card], password=[secret]"


def test_equal_values_have_equal_tags():
    hashed = Redactor(action="hash").apply("bob@example.com BOB@example.com eve@example.com").split()
    assert hashed[0] == hashed[1] != hashed[2]
    assert all(re.fullmatch(r"\[email:[0-9a-f]{6}\]", tag) for tag in hashed)
    cards = Redactor(action="hash").apply("4111111111111111, 4111-1111-1111-1111").split(", ")
    assert cards[0] == cards[1]


def test_tags_depend_on_the_key():
    first, second = (Redactor(action="hash", key=letter * 16) for letter in "ab")
    assert first.apply("bob@example.com") == Redactor(action="hash", key=b"a" * 16).apply("bob@example.com")
    assert first.apply("bob@example.com") != second.apply("bob@example.com")
    assert Redactor(action="hash").apply("bob@example.com") not in (first.apply("bob@example.com"), "[email]")


def test_each_kind_can_have_its_own_action():
    redactor = Redactor(actions={"email": "mask", "secret": "block"})
    assert redactor.apply("bob@example.com 203.0.113.7 password=hunter2") == "b***@example.com [ip] password=[secret]"
    assert redactor.blocked({"email", "secret", "ip"}) == ["secret"]


@given(TEXTS)
def test_clean_text_stays_unchanged(text):
    for action in ("redact", "mask", "hash"):
        redactor = Redactor(action=action)
        once = redactor.apply(text)
        if once == text:
            assert redactor.find(text) == []


@each_case("value", VALUES)
@pytest.mark.parametrize("action", ["redact", "mask", "hash"])
def test_replacements_are_not_found_again(value, action):
    redactor = Redactor(action=action)
    assert redactor.find(redactor.apply(f"a {value} b")) == []


def test_extra_kinds_are_found_within_a_line():
    redactor = Redactor(["email"], extra={"employee": re.compile(r"E-\d{5}"), "case": "(?i)case \\d+"})
    assert redactor.apply("E-12345 Case 7 bob@example.com E-1\n2345") == "[employee] [case] [email] E-1\n2345"
    assert Redactor([], extra={"x": "q+"}).apply("aqqb bob@example.com") == "a[x]b bob@example.com"


def test_allowed_values_domains_and_expressions_are_kept():
    redactor = Redactor(allow=["Support@Example.com", "acme.com", "203.0.113.7", re.compile(r"\+49 30 .*")])
    text = "support@example.com a@acme.com b@mail.acme.com 203.0.113.7 +49 30 1234567"
    assert redactor.apply(text) == text
    assert redactor.apply("bob@example.com a@evil-acme.com a@acme.com.evil.org") == "[email] [email] [email]"
    assert Redactor(allow=["@acme.com"]).apply("a@acme.com") == "a@acme.com"


@each_case(
    "options",
    [
        {"kinds": "email"},
        {"kinds": ["mail"]},
        {"kinds": []},
        {"action": "remove"},
        {"action": None},
        {"actions": {"email": "x"}},
        {"actions": {"mail": "mask"}},
        {"actions": ["mask"]},
        {"extra": ["x"]},
        {"extra": {"email": "x"}},
        {"extra": {"a b": "x"}},
        {"extra": {"a": "("}},
        {"extra": {"a": 3}},
        {"extra": {"a": re.compile(b"x")}},
        {"extra": {"a": ""}},
        {"extra": {3: "x"}},
        {"allow": "a@b.com"},
        {"allow": [3]},
        {"allow": [""]},
        {"allow": re.compile("x")},
        {"allow": 3},
        {"allow": ["@"]},
        {"allow": [re.compile(b"x")]},
        {"key": "short"},
        {"key": 3},
        {"key": ""},
        {"private_ips": 1},
    ],
)
def test_invalid_arguments_are_rejected(options):
    with pytest.raises(RegistrationError):
        Redactor(**options)


# JSON


def test_json_is_cleaned_in_values_keys_and_long_numbers():
    value = {
        "to": ["bob@example.com", {"deep": ("4111111111111111", None, 1.5, True)}],
        "bob@example.com": 1,
        "eve@example.com": 2,
        "card": 4111111111111111,
        "id": 1768000000000,
    }
    assert Redactor().apply_to(value) == {
        "to": ["[email]", {"deep": ["[card]", None, 1.5, True]}],
        "[email]": 1,
        "[email] 2": 2,
        "card": "[card]",
        "id": 1768000000000,
    }
    assert value["card"] == 4111111111111111


def test_clean_json_is_returned_unchanged():
    value = {"a": [1, 2, {"b": "all is well"}], "n": 10**5000, "token": "abc", "password": None}
    assert Redactor().apply_to(value) is value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("password", "letmein"),
        ("db_password", "letmein"),
        ("apiKey", "abcd1234efgh"),
        ("client_secret", "0a1b2c3d4e5f"),
    ],
)
def test_the_name_of_a_field_can_mark_its_value_as_a_secret(field, value):
    assert Redactor().apply_to([{field: value}]) == [{field: "[secret]"}]
    assert Redactor(["email"]).apply_to({field: value}) == {field: value}
    assert Redactor(allow=[value]).apply_to({field: value}) == {field: value}


@pytest.mark.parametrize("item", [{"password": ""}, {"password": "***"}, {"token": "word"}, {"tokens": "12345678a"}])
def test_other_fields_and_placeholders_are_not_secrets(item):
    assert Redactor().apply_to(item) is item


def test_a_value_split_over_two_fields_is_not_found():
    assert Redactor().apply_to(["4111 1111", "1111 1111"]) == ["4111 1111", "1111 1111"]


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.sampled_from(VALUES)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)),
    max_leaves=12,
)


@given(JSON)
def test_no_value_is_left_in_any_json(value):
    redactor = Redactor()
    cleaned = redactor.apply_to(value)
    assert redactor.clean_value(cleaned)[1] == frozenset()


# Streams


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(TEXTS, st.lists(st.integers(1, 12), max_size=60), st.sampled_from(["redact", "mask", "hash"]))
def test_the_streamed_pieces_add_up_to_the_redacted_text(text, cuts, action):
    redactor = Redactor(action=action)
    assert streamed(redactor, text, cuts) == redactor.apply(text)


@given(TEXTS)
def test_the_streamed_pieces_add_up_even_for_single_characters(text):
    redactor = Redactor()
    assert streamed(redactor, text, [1] * len(text)) == redactor.apply(text)


@given(TEXTS, st.lists(st.integers(1, 12), max_size=60))
def test_the_streamed_pieces_add_up_with_extra_kinds(text, cuts):
    redactor = Redactor(extra={"pair": re.compile(r"\w+ is \w+"), "rest": re.compile("world.*$")})
    assert streamed(redactor, text, cuts) == redactor.apply(text)


@each_case("value", VALUES)
def test_no_streamed_piece_has_a_part_of_a_value(value):
    whole = f"It says {value} there. "
    expected = Redactor().apply(whole)
    for cut in range(len(whole)):
        stream = Redactor().stream()
        first = stream.feed(whole[:cut])
        assert expected.startswith(first)
        assert first + stream.feed(whole[cut:]) + stream.finish() == expected


def test_safe_text_is_streamed_immediately():
    stream = Redactor().stream()
    assert [stream.feed(word) for word in ("The ", "sky ", "is ", "blue, ", "bob", "@example.com", " knows. ")] == [
        "The ",
        "sky ",
        "is ",
        "blue, ",
        "",
        "",
        "[email] knows. ",
    ]
    assert stream.feed("In 2024 ") == "In "
    assert stream.feed("we met. ") == "2024 we met. "
    assert stream.feed("没有空格的文字") == "没有空格的文字"


def test_a_private_key_is_held_back_until_its_end():
    stream = Redactor().stream()
    lines = "".join(f"{'Ab1/' * 16}\n" for _ in range(100))
    assert stream.feed("Key: -----BEGIN PRIVATE KEY-----\n") == "Key: "
    assert stream.feed(lines) == ""
    assert stream.feed("-----END PRIVATE KEY-----\nDone. ") == "[secret]\nDone. "


def test_a_private_key_without_an_end_is_held_back_up_to_a_limit():
    redactor, stream = Redactor(), Redactor().stream()
    text = "-----BEGIN PRIVATE KEY-----\n" + f"{'Ab1/' * 16}\n" * 1000 + "And so on. "
    out = "".join(stream.feed(line) for line in text.splitlines(keepends=True))
    assert len(out) > 10_000
    assert out + stream.finish() == redactor.apply(text)
    assert out.startswith("[secret]")


def test_a_blocked_value_ends_a_stream_before_it_is_shown():
    stream = Redactor(actions={"card": "block"}).stream()
    assert stream.feed("Mine is 4111 1111 ") == "Mine is "
    assert stream.feed("1111 1111, ok? ") == ""
    assert stream.blocked == ["card"]
    assert stream.feed("More. ") + stream.finish() == ""


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "piece", ["a", "1 ", "4 ", "@", "eyJ", "-----BEGIN PRIVATE KEY-----\n", "'", "\u200b", "password='"]
)
def test_long_streams_of_small_pieces_are_processed(piece):
    redactor = Redactor()
    text = piece * (8000 // len(piece))
    assert streamed(redactor, text, [3] * (len(text) // 3)) == redactor.apply(text)


def test_a_redactor_can_be_shared_between_threads():
    redactor, wrong = Redactor(action="hash"), []
    expected = {n: redactor.apply(f"a{n}@example.com and 4111111111111111") for n in range(8)}

    def work(n):
        for _ in range(50):
            if redactor.apply(f"a{n}@example.com and 4111111111111111") != expected[n]:
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert isinstance(redactor.stream(), RedactedStream)
