"""Secrets in text: tokens with a known prefix, random-looking tokens, private keys, and logins in URLs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from .assignments import CJK, assigned_in, command_logins_in, cookies_in, is_mixed, is_placeholder, open_value_from
from .lazy_patterns import lazily
from .numbers import DIGIT, positions

Span = tuple[int, int, str]
"""The start and end of a secret, and its label."""

SHORTEST_RUN = 16
_SHORTEST_RANDOM = 32
_LONGEST_RANDOM = 256
_LONGEST_KEY = 16_384
_BEFORE_RUN = 24

_PREFIXES = {
    "anthropic": r"sk-ant-[\w-]{16,}",
    "openai": r"sk-[\w-]{20,}",
    "stripe": r"[sr]k_(?:live|test)_[A-Za-z0-9]{16,}|whsec_[A-Za-z0-9+/]{24,}={0,2}",
    "aws": r"A(?:KIA|SIA|BIA|CCA)[A-Z0-9]{16}|ABSK[A-Za-z0-9+/]{40,}={0,2}",
    "github": r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}",
    "gitlab": r"gl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|oas|soat|ffct)-[\w.-]{20,}|GR1348941[\w-]{20,}",
    "slack": r"xox[abceoprs]-[\w-]{16,}|xapp-[\w-]{16,}|xoxe\.xox[bp]-[\w-]{16,}",
    "google": r"AIza[\w-]{35,}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{20,}|1//0[\w-]{30,}",
    "npm": r"npm_[A-Za-z0-9]{36,}",
    "pypi": r"pypi-[\w-]{40,}",
    "hugging face": r"hf_[A-Za-z0-9]{30,}|api_org_[A-Za-z0-9]{30,}",
    "sendgrid": r"SG\.[\w-]{16,}\.[\w-]{16,}",
    "twilio": r"(?:SK|AC)[0-9a-f]{32}(?![0-9a-f])",
    "telegram": r"[0-9]{8,10}:A[\w-]{33,}",
    "discord": r"[MNO][\w-]{23,27}\.[\w-]{6,7}\.[\w-]{27,}",
    "digitalocean": r"do[opr]_v1_[0-9a-f]{64}",
    "shopify": r"shp(?:at|ca|pa|ss|tka)_[0-9a-fA-F]{32}",
    "mailgun": r"key-[0-9a-f]{32}",
    "mailchimp": r"[0-9a-f]{32}-us[0-9]{1,2}",
    "databricks": r"dapi[0-9a-f]{32}",
    "vault": r"hv[sbr]\.[\w-]{20,}",
    "linear": r"lin_(?:api|oauth)_[A-Za-z0-9]{30,}",
    "notion": r"secret_[A-Za-z0-9]{40,}|ntn_[A-Za-z0-9]{40,}",
    "figma": r"fig[du]_[\w-]{30,}",
    "docker": r"dckr_[po]at_[\w-]{20,}",
    "azure": r"[A-Za-z0-9+/]{86}==|[\w.~-]{3}[0-9]Q~[\w.~-]{31,}",
    "jwt": r"eyJ[\w-]{10,}\.[\w-]{10,}(?:\.[\w-]*)?",
    "atlassian": r"AT(?:ATT|CTT)3[\w=-]{40,}|ATBB[A-Za-z0-9]{28,}",
    "grafana": r"gl(?:sa|c)_[A-Za-z0-9+/]{32,}(?:_[0-9a-f]{8})?={0,2}",
    "new relic": r"NRAK-[A-Z0-9]{27}",
    "sentry": r"sntry[su]_[\w+/=-]{40,}",
    "postman": r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}",
    "doppler": r"dp\.(?:pt|st|ct|sa|scim|audit)\.[\w.-]{30,}",
    "pulumi": r"pul-[0-9a-f]{40}",
    "terraform": r"[A-Za-z0-9]{14}\.atlasv1\.[\w=-]{60,}",
    "planetscale": r"pscale_(?:tkn|pw|oauth)_[\w.-]{30,}",
    "supabase": r"sbp_[0-9a-f]{40}|sb_secret_[\w-]{20,}",
    "groq": r"gsk_[A-Za-z0-9]{40,}",
    "replicate": r"r8_[A-Za-z0-9]{37}",
    "perplexity": r"pplx-[A-Za-z0-9]{40,}",
    "xai": r"xai-[A-Za-z0-9]{40,}",
    "nvidia": r"nvapi-[\w-]{50,}",
    "tavily": r"tvly-[\w-]{20,}",
    "langsmith": r"lsv2_[ps][tk]_[0-9a-f]{32}_[0-9a-f]{10}",
    "square": r"sq0(?:atp|csp|idp)-[\w-]{22,}|EAAA[\w-]{60}",
    "facebook": r"EAA[A-Za-z0-9]{60,}",
    "dropbox": r"sl\.[\w-]{60,}",
    "rubygems": r"rubygems_[0-9a-f]{48}",
    "crates": r"cio[A-Za-z0-9]{32}(?![A-Za-z0-9])",
    "nuget": r"oy2[a-z0-9]{43}",
    "heroku": r"HRKU-[\w-]{30,}",
    "netlify": r"nf[puo]_[A-Za-z0-9]{36,}",
    "fly": r"fo1_[\w-]{40,}|fm[12][ar]?_[\w+/=-]{60,}",
    "airtable": r"pat[A-Za-z0-9]{14}\.[0-9a-f]{64}",
    "contentful": r"CFPAT-[\w-]{40,}",
    "dynatrace": r"dt0[a-z][0-9]{2}\.[A-Z0-9]{24}\.[A-Z0-9]{64}",
    "1password": r"ops_eyJ[\w+/=-]{40,}|A3-[A-Z0-9]{6}-(?:[A-Z0-9]{11}|[A-Z0-9]{6}-[A-Z0-9]{5})(?:-[A-Z0-9]{5}){3}",
    "tailscale": r"tskey-[a-z]+-[\w-]{16,}",
    "age": r"AGE-SECRET-KEY-1[A-Z0-9]{58}",
    "typeform": r"tfp_[\w.-]{40,}",
    "easypost": r"EZ[AT]K[A-Za-z0-9]{54}",
    "sourcegraph": r"sgp_[A-Za-z0-9_]{40,}",
    "render": r"rnd_[A-Za-z0-9]{28,}",
    "posthog": r"phx_[A-Za-z0-9]{40,}",
}
"""Token formats as published by their vendors. A token must not follow a letter or digit."""

_VENDORS = {vendor: lazily(body, re.ASCII) for vendor, body in _PREFIXES.items()}
_ANY = "(?:" + "|".join(_PREFIXES.values()) + ")"
_BUT_JWT = "(?:" + "|".join(body for vendor, body in _PREFIXES.items() if vendor != "jwt") + ")"
_TOKEN, _INNER_TOKEN = lazily(_ANY, re.ASCII), lazily(f"[_-](?={_BUT_JWT})", re.ASCII)
_INNER_JWT, _AFTER_JWT = re.compile(r"[_-](?=eyJ[\w-]{10})", re.ASCII), re.compile(r"\.[\w-]{10}", re.ASCII)
_IN_PARTS = (
    "sendgrid",
    "google",
    "vault",
    "dropbox",
    "doppler",
    "telegram",
    "slack",
    "terraform",
    "dynatrace",
    "azure",
    "airtable",
)
_PARTED_TOKEN = lazily("(?<![A-Za-z0-9])(?:" + "|".join(_PREFIXES[vendor] for vendor in _IN_PARTS) + ")", re.ASCII)
_RUN_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
_RUNS = bytes(97 if byte in _RUN_BYTES else 32 for byte in range(256))
_RUN = b" " + b"a" * SHORTEST_RUN

_PIECES = re.compile("[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_ID_PREFIX = re.compile("[a-z]{2,12}[_-]")
_JOINS = re.compile("[+/]")
_HEX = re.compile("(?:0[xX])?(?:[0-9a-f-]+|[0-9A-F-]+)")
_DULL = re.compile("(?:[0-9a-f-]++|[a-z_-]++|[0-9A-F-]++)(?![A-Za-z0-9_-])")
_WIDE = re.compile(f"[A-Za-z0-9+/_-]{{1,{_LONGEST_RANDOM + 1}}}={{0,2}}")
_REST = re.compile("[A-Za-z0-9_-]+")
_WIDE_SIGNS = _RUN_BYTES.decode() + "+/"
_DIGEST_BEFORE = re.compile(r"(?i)(?:sha-?[0-9]{1,3}|md5|h1|integrity|digest|etag|nonce)[-:=\"' ]{1,4}\Z")
_WORD_BEFORE = re.compile(
    r"(?i)(?:key|token|secret|passw(?:or)?d|credentials?|auth|authorization|bearer|pat|signature)\b[^\n]{0,24}\Z"
)

_BEARER = re.compile(r"(?i)bearer[ \t]{1,3}([A-Za-z0-9._~+/-]{12,}={0,2})")
_HEADER = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_HEADER_BEGUN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,60}-{0,5}\Z")
END_OF_KEY = re.compile(r"-----END [A-Z0-9 ]{0,60}-----")
_BODY = re.compile(r"(?:[\s\"',+]|\\[nr])*(?:[A-Za-z0-9+/=]{16,}(?:[\s\"',+]|\\[nr])*)*")
_HOOKS = (re.compile(r"hooks\.slack\.com/services/([\w/-]{20,})"), re.compile(r"/api/webhooks/([0-9]{10,}/[\w-]{30,})"))


def secrets_in(text: str, raw: bytes, low: str) -> Iterator[Span]:
    """Yield the secrets in a normalised text that are within one line.

    ``raw`` has one byte for each character of the text, and ``low`` is the text in lower case.
    """
    yield from _tokens(text, raw)
    yield from ((*span, "assigned") for span in assigned_in(text, low))
    yield from ((*span, "cookie") for span in cookies_in(text, low))
    yield from ((*span, "login") for span in command_logins_in(text, low))
    for at in positions(low, "bearer"):
        found = _BEARER.match(text, at)
        if found and not _starts_inside_a_word(text, at) and is_mixed(found[1]):
            yield *found.span(1), "authorization"
    if "hooks" in low:
        for found in chain.from_iterable(address.finditer(text) for address in _HOOKS):
            yield *found.span(1), "webhook"


def url_login(text: str, at: int) -> tuple[int, int] | None:
    """Return the span of the login before the ``@`` in a URL: ``user:password`` or a token in ``https://token@host``."""
    start = text.rfind("://", max(0, at - _LONGEST_LOGIN), at)
    if start < 0:
        return None
    found = _LOGIN().match(text, start, at)
    if found is not None:
        return (found.start(1), at) if not is_placeholder(found[2]) else None
    token = _LONE_LOGIN.match(text, start, at)
    return (token.start(1), at) if token and is_mixed(token[1]) and DIGIT.search(token[1]) else None


_LONGEST_LOGIN = 400
_LOGIN = lazily(
    rf"://(?!\[\w+(?::[0-9a-f]{{6}})?\]\Z)([^\s/@:\"'<>{CJK}]{{0,100}}:"
    rf"([^\s/@\"'<>{CJK}]{{1,200}}(?:@[^\s/@?#\"'<>{CJK}]{{1,100}}){{0,3}}))\Z"
)
_LONE_LOGIN = re.compile(r"://([A-Za-z0-9_.~-]{20,200})\Z")


def open_secret_from(text: str, start: int) -> int:
    """Return the start of a secret with spaces or lines that has no end yet; else the length of the text.

    ``start`` is the end of the text that was emitted before.
    """
    begun = _HEADER_BEGUN.search(text, max(0, len(text) - 80))
    return min(_open_key(text, start), begun.start() if begun else len(text), open_value_from(text, start))


def _open_key(text: str, start: int) -> int:
    at = text.find("-----BEGIN", start)
    while at >= 0:
        end = at + 1
        if _HEADER.match(text, at) and len(text) - at < _LONGEST_KEY:
            found = END_OF_KEY.search(text, at)
            if found is None:
                return at
            end = found.start()
        at = text.find("-----BEGIN", end)
    return len(text)


def _starts_inside_a_word(text: str, at: int) -> bool:
    return at > 0 and text[at - 1].isascii() and text[at - 1].isalnum()


def private_keys_in(text: str) -> Iterator[Span]:
    """Yield private keys with their begin and end lines; without an end line, as far as the text looks like a key."""
    at, end = text.find("-----BEGIN"), 0
    while at >= 0:
        header = _HEADER.match(text, at)
        if header is not None:
            if end < header.end():
                found = END_OF_KEY.search(text, header.end())
                end = len(text) + _LONGEST_KEY if found is None else found.end()
            if end - at <= _LONGEST_KEY:
                yield at, end, "private key"
                at = end - 1
            else:
                body = _BODY.match(text, header.end(), at + _LONGEST_KEY)
                stop = body.end() if body else header.end()
                if stop - header.end() >= SHORTEST_RUN:
                    yield at, stop, "private key"
        at = text.find("-----BEGIN", at + 1)


def _tokens(text: str, raw: bytes) -> Iterator[Span]:
    runs, done = b" " + raw.translate(_RUNS), 0
    at = runs.find(_RUN)
    while at >= 0:
        if dull := _DULL.match(text, at):
            at = runs.find(_RUN, dull.end())
            continue
        end = runs.find(b" ", at + SHORTEST_RUN) - 1
        end = len(text) if end < 0 else end
        span = _with_prefix(text, at, end)
        if span is None and (
            DIGIT.search(text, at, end) or (at and _JOINS.match(text, at - 1)) or _JOINS.match(text, end)
        ):
            span = _with_inner_prefix(text, at, end) or _random(text, at, end)
        if span is not None:
            yield span
            done = span[1]
        at = runs.find(_RUN, max(end, done))


def _with_prefix(text: str, at: int, end: int) -> Span | None:
    """Return the token with a known prefix at the start of a run of letters and digits, or ``None``."""
    found = _TOKEN().match(text, at) if not _starts_inside_a_word(text, at) else None
    if found is None and text[at - 1 : at] in (".", ":", "/", "~"):
        found = _PARTED_TOKEN().search(text, max(0, at - _BEFORE_RUN), end + 128)
        found = found if found and found.start() <= at < found.end() else None
    return None if found is None else _token(text, found)


def _with_inner_prefix(text: str, at: int, end: int) -> Span | None:
    """Return a token with a known prefix after a dash or an underscore."""
    inner = _INNER_TOKEN().search(text, at, end + 512)
    if inner is None and _AFTER_JWT.match(text, end):  # looked up once: from every "eyJ" it would be quadratic
        inner = _INNER_JWT.search(text, at, end)
    if inner is None or inner.end() >= end or _DIGEST_BEFORE.search(text, max(0, inner.end() - 16), inner.end()):
        return None
    found = _TOKEN().match(text, inner.end())
    return None if found is None else _token(text, found)


def _token(text: str, found: re.Match[str]) -> Span | None:
    if found[0].islower() and not DIGIT.search(text, found.start() + 3, found.end()):
        return None
    rest = _REST.match(text, found.end())
    vendor = next((vendor for vendor, body in _VENDORS.items() if body().match(text, found.start())), "")
    return found.start(), rest.end() if rest else found.end(), vendor


def _random(text: str, start: int, end: int) -> Span | None:
    """Return a random-looking token; shorter ones count after a word such as "key"."""
    if text[start - 1 : start] in ("+", "/"):
        before = text[max(0, start - _LONGEST_RANDOM) : start]
        start -= len(before) - len(before.rstrip(_WIDE_SIGNS))
    wide = _WIDE.match(text, start)
    end = wide.end() if wide else end
    token = text[start:end]
    if len(token) > _LONGEST_RANDOM or _HEX.fullmatch(token) or token.startswith("AAAA"):
        return None
    pieces = _PIECES.findall(token)
    size = sum(map(len, pieces))
    numbers = sum(piece[0] in "0123456789" for piece in pieces)
    if (
        numbers < (2 if size < 32 else 1)
        or len(pieces) * (4 if len(token) == 40 else 3) < size
        or max(map(len, re.split("[_-]", token))) < SHORTEST_RUN
    ):
        return None
    many = any(piece.isupper() for piece in pieces) + any(piece[-1].islower() for piece in pieces) > 1
    if _DIGEST_BEFORE.search(text, max(0, start - 16), start) or _is_in_an_address(text, start):
        return None
    named = _ID_PREFIX.match(token)  # prefixes such as cus_, pi_ and toolu_ are of ids, which are shorter than keys
    if many and len(token) - (named.end() if named else 0) >= _SHORTEST_RANDOM and not _is_data(text, start, end):
        return start, end, "random"
    near = _WORD_BEFORE.search(text, max(0, start - 40), start)
    return (start, end, "random") if near else None


def _is_in_an_address(text: str, start: int) -> bool:
    """Whether the position is inside a URL, a path or a data URI, but not in one of its parameters."""
    head = text[max(0, start - 400) : start]
    word = head[max(head.rfind(sign) for sign in " \n\t\"'`(<>") + 1 :]
    return bool(word) and ("://" in word or ";base64," in word or word[0] in "/.~") and word[-1] not in "=:"


def _is_data(text: str, start: int, end: int) -> bool:
    """Whether the token is a line of a base64 file, whose lines have a standard length."""
    alone = (start == 0 or text[start - 1] == "\n") and (end == len(text) or text[end] in "\r\n")
    return alone and end - start in (64, 76)
