"""Secrets in text: tokens with a known prefix, values assigned to a password or key, and random-looking tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain

from .numbers import positions

Span = tuple[int, int, str]
"""The start and end of a secret, and its label."""

SHORTEST_RUN = 16
_SHORTEST_RANDOM = 32
_LONGEST_RANDOM = 256
_LONGEST_KEY = 16_384
_BEFORE_RUN = 24
_CJK = r"⺀-\U0010ffff"  # values end before scripts without spaces, so that streamed text can be cut there

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

_VENDORS = {vendor: re.compile(body, re.ASCII) for vendor, body in _PREFIXES.items()}
_ANY = "(?:" + "|".join(_PREFIXES.values()) + ")"
_TOKEN, _INNER_TOKEN = re.compile(_ANY, re.ASCII), re.compile(f"[_-](?={_ANY})", re.ASCII)
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
_PARTED_TOKEN = re.compile("(?<![A-Za-z0-9])(?:" + "|".join(_PREFIXES[vendor] for vendor in _IN_PARTS) + ")", re.ASCII)
_RUN_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
_RUNS = bytes(97 if byte in _RUN_BYTES else 32 for byte in range(256))
_RUN = b" " + b"a" * SHORTEST_RUN

_DIGIT = re.compile("[0-9]")
_PIECES = re.compile("[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_ID_PREFIX = re.compile("[a-z]{2,12}[_-]")
_JOINS = re.compile("[+/]")
_HEX = re.compile("(?:0[xX])?(?:[0-9a-f-]+|[0-9A-F-]+)")
_DULL = re.compile("(?:[0-9a-f-]++|[a-z_-]++|[0-9A-F-]++)(?![A-Za-z0-9_-])")
_WIDE = re.compile("[A-Za-z0-9+/_-]+={0,2}")
_REST = re.compile("[A-Za-z0-9_-]+")
_WIDE_SIGNS = _RUN_BYTES.decode() + "+/"
_DIGEST_BEFORE = re.compile(r"(?i)(?:sha-?[0-9]{1,3}|md5|h1|integrity|digest|etag|nonce)[-:=\"' ]{1,4}\Z")
_WORD_BEFORE = re.compile(
    r"(?i)(?:key|token|secret|passw(?:or)?d|credentials?|auth|authorization|bearer|pat|signature)\b[^\n]{0,24}\Z"
)

_SORT_OF_KEY = (
    r"(?:api|access|secret|private|auth|encryption|signing|master|account|storage|subscription|license|service|session|"
    r"client|shared|webhook|admin|app)[_\- ]?"
)
_NAME = (
    r"pass(?:words?|wd|phrase|code)|pwd|pass(?=[=:]|\Z)|secret(?:[_-]?(?:access)?[_-]?key)?|token|authorization|"
    rf"{_SORT_OF_KEY}key"
)
_BETWEEN = r"\\?[\"'`\]]{0,2}[ \t]{0,3}(?P<sep>=>|:=|={1,2}|:|->|\bis\b(?: now|:)?)[ \t]{0,3}\\?"
_QUOTED = r"(?:\"[^\"\n]{%d,200}+|'[^'\n]{%d,200}+|`[^`\n]{%d,200}+)"
_ASSIGNED = re.compile(
    rf"(?i)(?P<name>{_NAME}){_BETWEEN}(?:(?:basic|bearer|digest|token)[ \t]{{1,3}})?"
    rf"(?:(?P<quoted>{_QUOTED % (4, 4, 4)})|(?P<bare>[^\s\"'`,;&<>(){{}}\[\]{_CJK}]{{4,200}}+))"
)
_FIELD = re.compile(rf"(?i)(?P<name>{_NAME})\Z")
_OPEN_QUOTE = re.compile(rf"(?i)(?:{_NAME}){_BETWEEN}{_QUOTED % (0, 0, 0)}\Z")
_NAMES = (b"pass", b"pwd", b"secret", b"token", b"key", b"authorization")
_KEY_BEFORE = re.compile(rf"(?i){_SORT_OF_KEY}\Z")
_NO_VALUE = re.compile(
    r"(?i)(?:[*x._-]+|<.*|\$\{.*|\$\(.*|\$[a-z_]+|%\w+%|%[sd(].*|[{(\[].*|\.{0,2}/.*|~/.*|[\w.+-]+://.*|your.*|"
    r"my[_-]?(?:passw|secret|token|key|api).*|change[_-]?(?:me|it).*|"
    r"(?:the|an?|this|some|any|my|enter|please|must|should|not|no|for|from|with|and|or|in|on)\b.*|"
    r"none|null|nil|true|false|undefined|redacted|hidden|(?:example|sample|dummy|placeholder)\w*|todo|tbd|"
    r"string|str|text|bytes|int|optional|required|pass(?:word|wd)?s?|pass(?:word|wd)?[_-].*|pwd|secret|token|bearer|basic|"
    r"(?:os|env|process|self|settings|config|secrets?|var|data|local|args|request|ctx)\.[a-z_].*|vault:.*)\Z"
)
_IDENTIFIER = re.compile(r"[A-Za-z_$][A-Za-z_$]*[0-9]{0,3}(?:[.-][A-Za-z_$]*[0-9]{0,3})*\Z")
_TYPE = re.compile(r"(?:[A-Z][a-z]+[0-9]*){2,}\Z")
_BEARER = re.compile(r"(?i)bearer[ \t]{1,3}([A-Za-z0-9._~+/-]{12,}={0,2})")
_HEADER = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_HEADER_BEGUN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,60}\Z")
_END = re.compile(r"-----END [A-Z0-9 ]{0,60}-----")
_BODY = re.compile(r"(?:[\s\"',+]|\\[nr])*(?:[A-Za-z0-9+/=]{16,}(?:[\s\"',+]|\\[nr])*)*")
_HOOKS = (re.compile(r"hooks\.slack\.com/services/([\w/-]{20,})"), re.compile(r"/api/webhooks/([0-9]{10,}/[\w-]{30,})"))


def secrets_in(text: str, raw: bytes, low: bytes) -> Iterator[Span]:
    """Yield the secrets in a normalised text that are within one line.

    ``raw`` has one byte for each character of the text, and ``low`` is ``raw`` in lower case.
    """
    yield from _tokens(text, raw)
    yield from _assigned(text, low)
    for at in positions(low, b"bearer"):
        found = _BEARER.match(text, at)
        if found and not _starts_inside_a_word(text, at) and _is_mixed(found[1]):
            yield *found.span(1), "authorization"
    if b"hooks" in low:
        for found in chain.from_iterable(address.finditer(text) for address in _HOOKS):
            yield *found.span(1), "webhook"


def url_login(text: str, at: int) -> tuple[int, int] | None:
    """Return the span of the user and password before the ``@`` in a URL such as ``ftp://user:password@host``."""
    start = text.rfind("://", max(0, at - 400), at)
    found = _LOGIN.match(text, start, at) if start >= 0 else None
    return None if found is None or _NO_VALUE.match(found[2]) else (found.start(1), at)


_LOGIN = re.compile(
    rf"://(?!\[\w+(?::[0-9a-f]{{6}})?\]\Z)([^\s/@:\"'<>{_CJK}]{{0,100}}:([^\s/@\"'<>{_CJK}]{{1,200}}))\Z"
)


def holds_from(text: str, start: int) -> int | None:
    """Return the start of a private key after ``start`` that has no end yet; ``None`` if there is none."""
    at = text.find("-----BEGIN", start)
    while at >= 0:
        if _HEADER.match(text, at) and len(text) - at < _LONGEST_KEY and not _END.search(text, at, at + _LONGEST_KEY):
            return at
        at = text.find("-----BEGIN", at + 1)
    return None


def is_open(tail: str) -> bool:
    """Whether a text with this end may be in the middle of a secret that contains spaces."""
    return bool(_HEADER_BEGUN.search(tail, max(0, len(tail) - 80)) or _OPEN_QUOTE.search(tail))


@lru_cache(maxsize=1024)
def name_of_secret(field: str) -> str:
    """Return the kind of secret that a field of this name contains, such as ``"password"``; empty if it has none."""
    found = _FIELD.search(field[-100:])
    return found["name"].lower() if found else ""


def is_secret(name: str, value: str) -> bool:
    """Whether the value of such a field is a secret, not a placeholder or a word."""
    if name.startswith(("pass", "pwd")):
        return is_value(value)
    return len(value) >= 8 and " " not in value and _is_mixed(value) and is_value(value)


def is_value(value: str) -> bool:
    """Whether a text can be a secret, not a placeholder."""
    return len(value) >= 4 and not _NO_VALUE.match(value)


def _starts_inside_a_word(text: str, at: int) -> bool:
    return at > 0 and text[at - 1].isascii() and text[at - 1].isalnum()


def _is_mixed(value: str) -> bool:
    """Whether a value has a digit, or mixes upper and lower case within a word."""
    return _DIGIT.search(value) is not None or (value[1:] != value[1:].lower() and value != value.upper())


def private_keys_in(text: str) -> Iterator[Span]:
    """Yield private keys with their begin and end lines; without an end line, as far as the text looks like a key."""
    at, end = text.find("-----BEGIN"), 0
    while at >= 0:
        header = _HEADER.match(text, at)
        if header is not None:
            if end < header.end():
                found = _END.search(text, header.end())
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
            _DIGIT.search(text, at, end) or (at and _JOINS.match(text, at - 1)) or _JOINS.match(text, end)
        ):
            span = _with_inner_prefix(text, at, end) or _random(text, at, end)
        if span is not None:
            yield span
            done = span[1]
        at = runs.find(_RUN, max(end, done))


def _with_prefix(text: str, at: int, end: int) -> Span | None:
    """Return the token with a known prefix at the start of a run of letters and digits, or ``None``."""
    found = _TOKEN.match(text, at) if not _starts_inside_a_word(text, at) else None
    if found is None and text[at - 1 : at] in (".", ":", "/", "~"):
        found = _PARTED_TOKEN.search(text, max(0, at - _BEFORE_RUN), end + 128)
        found = found if found and found.start() <= at < found.end() else None
    return None if found is None else _token(text, found)


def _with_inner_prefix(text: str, at: int, end: int) -> Span | None:
    """Return a token with a known prefix after a dash or an underscore."""
    inner = _INNER_TOKEN.search(text, at, end + 512)
    if inner is None or inner.end() >= end or _DIGEST_BEFORE.search(text, max(0, inner.end() - 16), inner.end()):
        return None
    found = _TOKEN.match(text, inner.end())
    return None if found is None else _token(text, found)


def _token(text: str, found: re.Match[str]) -> Span | None:
    if found[0].islower() and not _DIGIT.search(text, found.start() + 3, found.end()):
        return None
    rest = _REST.match(text, found.end())
    vendor = next((vendor for vendor, body in _VENDORS.items() if body.match(text, found.start())), "")
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
    head = text[max(0, start - 512) : start]
    word = head[max(head.rfind(sign) for sign in " \n\t\"'`(<>") + 1 :]
    return bool(word) and ("://" in word or ";base64," in word or word[0] in "/.~") and word[-1] not in "=:"


def _is_data(text: str, start: int, end: int) -> bool:
    """Whether the token is a line of a base64 file, whose lines have a standard length."""
    alone = (start == 0 or text[start - 1] == "\n") and (end == len(text) or text[end] in "\r\n")
    return alone and end - start in (64, 76)


def _assigned(text: str, low: bytes) -> Iterator[Span]:
    for word in _NAMES:
        for at in positions(low, word):
            start, following = at, low[at + len(word) : at + len(word) + 1]
            if word != b"pass" and following.isalpha():  # tokens, secretary, keyboard
                continue
            if word == b"key":
                head = _KEY_BEFORE.search(text, max(0, at - 16), at)
                if head is None:
                    continue
                start = head.start()
            found = _ASSIGNED.match(text, start)
            if found is not None and (span := _value(text, found)) is not None:
                yield *span, "assigned"


def _value(text: str, found: re.Match[str]) -> tuple[int, int] | None:
    name = found["name"].lower()
    is_password = name.startswith(("pass", "pwd"))
    if found["quoted"] is not None:
        value = found["quoted"][1:].removesuffix("\\")
        start = found.start("quoted") + 1
        in_words = " " in value and not _DIGIT.search(value) and name != "passphrase"
        return (start, start + len(value)) if not in_words and is_secret(name, value) else None
    value, start = found["bare"].rstrip(".!?:\\"), found.start("bare")
    after = text[found.end() : found.end() + 1]
    if not is_value(value) or after in ("(", "[", "{") or "://" in value:
        return None
    span, setting = (start, start + len(value)), found["sep"] == "=" and start == found.end("sep")
    if is_password and setting and (found["name"].isupper() or _in_a_query(text, found.start())):
        return span
    digits, has_letter = len(_DIGIT.findall(value)), value.lower() != value.upper()
    in_code = digits < 4 and ("." in value or not is_password) and _IDENTIFIER.match(value) is not None
    in_code = in_code or (not is_password and _TYPE.match(value) is not None)
    if is_password:
        odd = digits or any(sign in value for sign in "!@#$%^*?~+")
        return span if len(value) >= 5 and has_letter and odd and not in_code else None
    return span if len(value) >= 8 and digits and has_letter and not in_code else None


def _in_a_query(text: str, at: int) -> bool:
    head = text[max(0, at - 40) : at]
    sign = max(head.rfind("?"), head.rfind("&"))
    return sign >= 0 and re.fullmatch(r"[\w.-]*", head[sign + 1 :]) is not None
