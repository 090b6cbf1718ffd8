"""Find paths, URLs and hosts in the arguments of a call."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import pairwise
from typing import Any, Literal

from .._base.text import snake_case

_PATH_NAME = re.compile(r"(^|[_-])(path|file|filename|filepath|dir|directory|directorie|folder|cwd)s?$")
_PLACE_NAME = re.compile(r"(^|[_-])(src|dst|dest|source|destination|target|root|uri)s?$")
_FILE_URI = re.compile(r"\s*file:\S", re.IGNORECASE)
_OTHER_URI = re.compile(r"[a-z][a-z0-9+.-]+:", re.IGNORECASE)
_UPWARDS = re.compile(r"(^|[/\\])\.\.($|[/\\])")
_SEPARATED = re.compile(r"[/\\]|^[~$]")

_URL_NAME = re.compile(
    r"(^|[_-])(url|uri|iri|href|webhook|host|hostname|fqdn|ip|ip_address|ipv4|ipv6)s?$|(^|[_-])urls?[_-]"
)
_SITE_NAME = re.compile(r"(^|[_-])(link|endpoint|domain|server|site|website|proxy|callback|origin|netloc)(s|es)?$")
_FORMATS = frozenset(("uri", "iri", "uri-reference", "hostname", "idn-hostname", "ipv4", "ipv6"))
_HOST_LIKE = re.compile(
    r"[^.]*[^.\s][.\u3002\uff0e\uff61][^.\s].*|.*(?:[\\@\[]|//|:\d).*|localhost|\d+|0x[\da-f]+", re.I | re.S
)
_RELATIVE = re.compile(r"/(?![/\\\t\r\n])|[?#]")

_KNOWN = "|".join(rf"(?<=\b{scheme}:)" for scheme in ("https", "http", "wss", "ws", "ftps", "ftp"))
_INVISIBLE = r"[\x00-\x1f\x7f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u2064\ufeff]"
_MARK = re.compile(rf":(?:(?<=[a-z0-9+.\-]:)[\\/]{{2}}|(?:{_KNOWN})(?=[\\/\w]))", re.IGNORECASE)
_SPLIT_MARK = re.compile(
    rf":(?:{_INVISIBLE}+[\\/]{_INVISIBLE}*[\\/]|[\\/]{_INVISIBLE}+[\\/]|(?<={_INVISIBLE}:)[\\/]{{2}}|(?:{_KNOWN}){_INVISIBLE}+\w)",
    re.IGNORECASE,
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*\Z")
_LINK = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*:)([\\/]*)([^/?#\\]*)(.?)(.*)", re.DOTALL)
_LOCAL_LINK = re.compile(r"(?!https?:|wss?:|ftps?:)[A-Za-z][A-Za-z0-9+.\-]*:///(?![/\\])", re.IGNORECASE)
_SCHEME_ALONE = re.compile(r"""[A-Za-z][A-Za-z0-9+.\-]*://["'`)\]>,.;!?]*""")
_SPACE = re.compile(r"[ \t\r\n\v\f]+")
_CLOSED = re.compile(r"""([^"'`<>)\]}|,;&*]*)(["'`]*)(.?)""", re.DOTALL)
_MAX_SCHEME = 40
_MAX_LINKS = 10_000

_Kind = Literal["strong", "weak", ""]


def paths_in(arguments: Mapping[str, Any], typed: Collection[str]) -> list[str]:
    """Return the paths in arguments. The parameters in ``typed`` are known to hold paths."""
    found: list[str] = []
    for name, value in arguments.items():
        kind: _Kind = "strong" if name in typed else _path_kind(name)
        found += (text for text, kind in _texts(value, kind, _path_kind, "weak") if text and _is_path(text, kind))
    return found


def urls_in(arguments: Mapping[str, Any], typed: Collection[str], free: bool = True) -> Iterator[str]:
    """Yield the URLs and hosts in arguments.

    Args:
        arguments: the arguments of a call.
        typed: the names that are known to hold one, at any depth.
        free: whether to search texts of other parameters too.
    """

    def kind_of(name: str) -> _Kind:
        return "strong" if name in typed else _link_kind(name)

    for name, value in arguments.items():
        for text, kind in _texts(value, kind_of(name), kind_of, ""):
            if (kind == "strong" and text and not _RELATIVE.match(text)) or (kind == "weak" and _is_host(text)):
                yield text
            elif free or kind:
                yield from urls_in_text(text)


def urls_in_text(text: str) -> Iterator[str]:
    """Yield the URLs in a text, up to their hosts. An ambiguous URL is returned unchanged, so that it is rejected."""
    text = text.strip()
    split = _SPLIT_MARK.search(text)
    if split is not None:
        yield text[max(split.start() - _MAX_SCHEME, 0) : split.end() + _MAX_SCHEME]
        return
    starts = list(_starts(text))
    if starts and starts[0] == 0 and " " not in text:  # the tool may use the whole text as one URL
        yield from _whole(text)
        return
    for at, end in pairwise([*starts, len(text)]):
        word = _SPACE.split(text[at:end], 1)[0]
        is_mention = _SCHEME_ALONE.fullmatch(word) and text[at + len(word) : at + len(word) + 1] in ("", " ")
        if not is_mention and not _LOCAL_LINK.match(word):
            yield _closed(word)


def url_properties(schema: Any) -> Iterator[str]:
    """Yield the names of all properties in a JSON schema that have the format of a URL or a host."""
    if isinstance(schema, dict):
        properties = schema.get("properties")
        for name, about in properties.items() if isinstance(properties, dict) else ():
            if _has_format(about):
                yield name
        for value in schema.values():
            yield from url_properties(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from url_properties(value)


def _texts(value: Any, kind: _Kind, kind_of: Callable[[str], _Kind], of_keys: _Kind) -> Iterator[tuple[str, _Kind]]:
    """Yield every text in a value, including keys, with the kind that the names above it imply."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield name, of_keys if kind else ""
            yield from _texts(item, kind if kind == "strong" else kind_of(name) or kind, kind_of, of_keys)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, kind, kind_of, of_keys)
    elif isinstance(value, str):
        yield value, kind


def _path_kind(name: str) -> _Kind:
    name = snake_case(name)
    return "strong" if _PATH_NAME.search(name) else "weak" if _PLACE_NAME.search(name) else ""


def _is_path(text: str, kind: _Kind) -> bool:
    if kind == "strong" or _FILE_URI.match(text):
        return True
    return kind == "weak" and bool(_UPWARDS.search(text) or (_SEPARATED.search(text) and not _OTHER_URI.match(text)))


def _link_kind(name: str) -> _Kind:
    name = snake_case(name)
    return "strong" if _URL_NAME.search(name) else "weak" if _SITE_NAME.search(name) else ""


def _is_host(text: str) -> bool:
    return not _SPACE.search(text) and _RELATIVE.match(text) is None and _HOST_LIKE.fullmatch(text) is not None


def _has_format(schema: Any) -> bool:
    """Return whether a property or its items have such a format. Nested objects have their own property names."""
    if isinstance(schema, dict):
        below = (value for key, value in schema.items() if key not in ("properties", "default", "examples", "enum"))
        return schema.get("format") in _FORMATS or any(map(_has_format, below))
    return isinstance(schema, list) and any(map(_has_format, schema))


def _starts(text: str) -> Iterator[int]:
    """Yield the positions at which URLs start in a text."""
    last = 0
    for count, mark in enumerate(_MARK.finditer(text)):
        colon = mark.start()
        scheme = _SCHEME.search(text, max(last, colon - _MAX_SCHEME), colon)
        if count > _MAX_LINKS:
            yield colon  # this is not a URL, so the text is rejected: no legitimate text has this many
            return
        if scheme is not None and colon - scheme.start() > 1:  # a single letter is a drive letter
            yield scheme.start()
        last = colon


def _whole(text: str) -> Iterator[str]:
    """Yield the URLs of a text that starts like one and has no space: one URL, or one per line."""
    lines = re.split(r"[\t\r\n]+", text)
    if len(lines) > 1 and all(0 in _starts(line) for line in lines):
        yield from (line for line in lines if not _LOCAL_LINK.match(line))
    elif not _LOCAL_LINK.match(text):
        yield text


def _closed(word: str) -> str:
    """Return a URL within other text up to its host, without punctuation that closes it."""
    link = _LINK.fullmatch(word)
    if link is None:
        return word
    scheme, slashes, authority, mark, rest = link.groups()
    closed = _CLOSED.match(authority)
    assert closed is not None
    host, quotes, following = closed.groups()
    if len(host) < len(authority):
        joined = quotes and re.match(r"[\w.:%$@-]", following or mark)
        if joined or "@" in authority[len(host) :] + mark + rest:
            return word
        mark = ""
    elif mark in ("?", "#") and "@" in rest:
        return word
    host = host.rstrip(".:!_~") if not mark else host
    return f"{scheme}{slashes}{host}{mark}"
