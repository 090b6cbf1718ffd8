"""Find paths, URLs, hosts and text that a model writes in the arguments of a call."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import pairwise
from os.path import join, lexists, normpath
from typing import Any, Literal
from urllib.parse import unquote

from .._base.text import snake_case

_PATH_NAME = re.compile(r"(^|[_-])(path|file|filepath|dir|directory|directorie|folder|cwd)([_-]?name)?s?$")
_PLACE_NAME = re.compile(r"(^|[_-])(src|dst|dest|source|destination|target|root|uri)s?$")
_FILE_URI = re.compile(r"\s*file:\S", re.IGNORECASE)
_OTHER_URI = re.compile(r"[a-z][a-z0-9+.-]+:", re.IGNORECASE)
_UPWARDS = re.compile(r"(^|[/\\])\.\.($|[/\\])")
_SEPARATED = re.compile(r"[/\\]|^[~$]")
_PATH_FORMATS = frozenset(("path", "file-path", "directory-path"))
_LOOKS = re.compile(  # an absolute path (not a comment), a home folder, a variable, a drive, or ".."
    r"""[\s"']*(?:/(?!\*+[!\s]|/*\s)|\\\\|~[\w.-]*(?:[\\/]|$)|\$\{?\w+\}?[\\/]|[a-z]:[\\/]|file:\S|\.\.(?:[\\/]|[\s"']*$))"""
    r"""|.*[\\/]\.\.(?:[\\/]|[\s"']*$)""",
    re.IGNORECASE,
)
_TEXT_NAME = re.compile(
    r"(^|_)(text|message|msg|body|content|comment|description|prompt|question|query|q|search|pattern|regex|keyword|"
    r"term|reply|answer|summary|code)s?$"
)
_NOT_IN_NAME = re.compile(r"[\s\0]|%00|^[/\\~]|://")
_MAX_PATH, _MAX_NAME = 4096, 255

_URL_NAME = re.compile(
    r"(^|[_-])(url|uri|iri|href|webhook|host|hostname|fqdn|ip|ip_address|ipv4|ipv6)s?$|(^|[_-])urls?[_-]"
)
_SITE_NAME = re.compile(
    r"(^|[_-])(link|endpoint|domain|server|site|website|proxy|callback|origin|netloc|address|addr|target|remote|peer|"
    r"upstream|gateway|broker|api_?base|base_?api)(s|es)?$"
)
_FORMATS = frozenset(("uri", "iri", "uri-reference", "hostname", "idn-hostname", "ipv4", "ipv6"))
_HOST_LIKE = re.compile(
    r"[^.]*[^.\s][.\u3002\uff0e\uff61][^.\s].*|.*(?:[\\@\[]|//|:\d).*|localhost|\d+|0x[\da-f]+", re.I | re.S
)
_ADDRESS = re.compile(
    r"(?:(?:[\w-]{1,63}\.)+(?P<end>xn--[\w-]{2,59}|[a-z]{2,24})|(?:(?:0x[\da-f]+|\d{1,12})\.){3}(?:0x[\da-f]+|\d{1,12})|"
    r"\[[\da-f:.]{2,45}\]|localhost|ip6-(?:localhost|loopback)|[a-z][\w-]{0,62}(?=\.?:\d))\.?"
    r"(?P<rest>(?::\d{1,5}|:(?=/))?(?:[/?#]\S*)?)",
    re.IGNORECASE,
)
_DOTS = re.compile("[\u3002\uff0e\uff61]")
"""Other characters that separate the labels of a host, as browsers and Python read it."""
_REMOTE = re.compile(r"[\w.+-]+@(?:([^\s@:/]+):\S*|([\w-]+))")
"""``user@host:path``, as ssh and git read it, or ``user@host`` with a host of one label."""
_RELATIVE = re.compile(r"/(?![/\\\t\r\n])|[?#]")

_KNOWN = "|".join(rf"(?<=\b{scheme}:)" for scheme in ("https", "http", "wss", "ws", "ftps", "ftp"))
_INVISIBLE = r"[\x00-\x1f\x7f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u2064\ufeff]"
_NO_SCHEME = re.compile(
    r"""(?:^|(?<=[\s"'`=(<>,;]))//[\w-]+(?:\.[\w-]+)*\.[a-z]{2,24}(?::\d{1,5})?(?=[/?#"'`)>\\]|\s*$)""", re.IGNORECASE
)
"""``//host/path``, which means the scheme of the page that it is in. ``//word`` is a comment."""
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


def paths_in(
    arguments: Mapping[str, Any],
    typed: Collection[str] = (),
    schemas: Sequence[Any] = (),
    look: bool = False,
    texts: Collection[str] = (),
) -> list[str]:
    """Return the paths in arguments.

    Args:
        arguments: the arguments of a call.
        typed: the parameters that are known to hold paths.
        schemas: JSON schemas of the arguments; a text with the format of a path is one.
        look: whether a text of any parameter is a path if it looks like one.
        texts: the parameters to which ``look`` does not apply.
    """
    by_schema = {text for schema in schemas for text in _typed_texts(arguments, [schema], schema)}
    found: list[str] = []
    for name, value in arguments.items():
        if not isinstance(value, (str, list, dict)):
            continue
        kind: _Kind = "strong" if name in typed else _path_kind(name)
        for text, kind_of_text in _texts(value, kind, _path_kind, "weak"):
            if text and (text in by_schema or _is_path(text, kind_of_text)):
                found.append(text)
            elif look and name not in texts:
                found += _paths_by_look(text)
    return found


def has_path_format(schema: Any) -> bool:
    """Return whether a JSON schema has the format of a path anywhere."""
    if isinstance(schema, dict):
        return schema.get("format") in _PATH_FORMATS or any(map(has_path_format, schema.values()))
    return isinstance(schema, list) and any(map(has_path_format, schema))


def _typed_texts(value: Any, schemas: Iterable[Any], root: Any) -> Iterator[str]:
    """Yield the texts in a value that have the format of a path in one of the schemas.

    All schemas that may apply to a value are followed together, so that the time does not grow with each combination.
    """
    nodes = _applicable(schemas, root)
    if isinstance(value, str) and any(node.get("format") in _PATH_FORMATS for node in nodes):
        yield value
    elif isinstance(value, dict) and nodes:
        names = [node["propertyNames"] for node in nodes if "propertyNames" in node]
        for name, item in value.items():
            yield from _typed_texts(name, names, root)
            yield from _typed_texts(item, [each for node in nodes for each in _of_property(node, name)], root)
    elif isinstance(value, list) and nodes:
        for at, item in enumerate(value):
            yield from _typed_texts(item, [each for node in nodes for each in _of_item(node, at)], root)


def _applicable(schemas: Iterable[Any], root: Any) -> list[Any]:
    """Return the objects among schemas, and those that they refer to or combine."""
    found: dict[int, Any] = {}
    waiting = list(schemas)
    while waiting:
        node = waiting.pop()
        if not isinstance(node, dict) or id(node) in found:
            continue
        found[id(node)] = node
        if isinstance(node.get("$ref"), str):
            waiting.append(_referenced(node["$ref"], root))
        for key in ("allOf", "anyOf", "oneOf"):
            waiting += node[key] if isinstance(node.get(key), list) else ()
        waiting += (node.get(key) for key in ("if", "then", "else"))
    return list(found.values())


def _of_property(node: Mapping[str, Any], name: str) -> Iterator[Any]:
    properties, patterns = node.get("properties"), node.get("patternProperties")
    if isinstance(properties, dict) and name in properties:
        yield properties[name]
    else:
        yield node.get("additionalProperties")
    yield from patterns.values() if isinstance(patterns, dict) else ()


def _of_item(node: Mapping[str, Any], at: int) -> Iterator[Any]:
    prefix, items = node.get("prefixItems"), node.get("items")
    for listed in (prefix, items):  # before 2020, ``items`` could be the list
        if isinstance(listed, list) and at < len(listed):
            yield listed[at]
    yield items
    yield node.get("additionalItems")


def _referenced(reference: str, root: Any) -> Any:
    """Return the part of a schema to which a reference such as ``#/$defs/Place`` points; ``None`` if it is missing."""
    if not reference.startswith("#"):
        return None
    node = root
    for part in unquote(reference[1:]).split("/")[1:]:
        node = node.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(node, dict) else None
    return node


def _paths_by_look(text: str) -> list[str]:
    """Return a text, or its lines, if each line looks like a path. Other texts, such as code, have none."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    if not lines or not all(map(_looks_like_path, lines)):
        return []
    return [text] if len(lines) == 1 else lines


def _looks_like_path(line: str) -> bool:
    if len(line) > _MAX_PATH and len(normpath(line)) > _MAX_PATH:  # no system opens it; it may be encoded data
        return False
    return _LOOKS.match(line) is not None or ("%" in line and _LOOKS.match(unquote(line)) is not None)


def file_names_in(arguments: Mapping[str, Any], everywhere: bool, texts: Collection[str] = ()) -> Iterator[str]:
    """Yield the words in arguments that may be the names of files in the folder of a tool, or relative paths.

    Args:
        arguments: the arguments of a call.
        everywhere: whether to look at all parameters, and not only at those that are named like a place.
        texts: the parameters to leave out.
    """
    for name, value in arguments.items():
        for text, kind in () if name in texts else _texts(value, _path_kind(name), _path_kind, ""):
            word = text.strip(" \t\r\n\"'")
            if (everywhere or kind) and word and len(word) <= _MAX_NAME and not _NOT_IN_NAME.search(word):
                yield word


def named_files_in(arguments: Mapping[str, Any], folder: str, texts: Collection[str] = ()) -> Iterator[str]:
    """Yield the values in arguments that are files or folders there, or new files in such folders.

    Values of parameters for text, such as ``query`` and ``message``, are no names of files.

    Args:
        arguments: the arguments of a call.
        folder: the folder of the tool.
        texts: further parameters to leave out.
    """
    for text in _named_values({name: value for name, value in arguments.items() if name not in texts}, False):
        if len(text) <= _MAX_PATH and "://" not in text and any(_is_there(folder, form) for form in decoded(text)):
            yield text


def decoded(name: str) -> Iterable[str]:
    """Return a word as it is, and as a tool might decode it."""
    return dict.fromkeys((name, unquote(name), name.replace("\\", "/"), name.strip(" \t\r\n\"'")))


def is_text_name(name: str) -> bool:
    """Whether a parameter of this name holds text that somebody wrote or looks for, and not the name of a file."""
    return _TEXT_NAME.search(snake_case(name)) is not None


def _named_values(value: Any, with_keys: bool) -> Iterator[str]:
    """Yield the texts in a value, without those for text; keys only where the name above is that of a path."""
    if isinstance(value, dict):
        for name, item in value.items():
            if with_keys:
                yield name
            if not is_text_name(name):
                yield from _named_values(item, bool(_path_kind(name)))
    elif isinstance(value, list):
        for item in value:
            yield from _named_values(item, with_keys)
    elif isinstance(value, str):
        yield value


def _is_there(folder: str, name: str) -> bool:
    """Return whether a name is that of a file or folder, or of something new below a folder that exists."""
    first, separator, _ = name.partition("/")
    if separator and first and not _NOT_IN_NAME.search(name):
        return lexists(join(folder, first))
    return bool(name) and lexists(join(folder, name))


def urls_in(
    arguments: Mapping[str, Any],
    typed: Collection[str],
    free: bool = True,
    look: bool = False,
    texts: Collection[str] = (),
) -> Iterator[str]:
    """Yield the URLs and hosts in arguments.

    Args:
        arguments: the arguments of a call.
        typed: the names that are known to hold one, at any depth.
        free: whether to search texts of other parameters too.
        look: whether a word of any parameter is a host if it looks like one.
        texts: the parameters to which ``look`` does not apply.
    """

    def kind_of(name: str) -> _Kind:
        return "strong" if name in typed else _link_kind(name)

    for name, value in arguments.items():
        for text, kind in _texts(value, kind_of(name), kind_of, ""):
            if (kind == "strong" and text and not _RELATIVE.match(text)) or (kind == "weak" and _is_host(text)):
                yield text
            elif free or kind:
                links = list(urls_in_text(text))
                if look and not links and "%" in text and not _SPACE.search(text):
                    links = list(urls_in_text(unquote(text)))
                yield from links
                if look and name not in texts and not _path_kind(name):
                    yield from _hosts_by_look(text)


def urls_in_text(text: str) -> Iterator[str]:
    """Yield the URLs in a text, up to their hosts. An ambiguous URL is returned unchanged, so that it is rejected."""
    text = text.strip()
    yield from (found[0] for found in _NO_SCHEME.finditer(text))
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


@lru_cache(maxsize=1024)
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
    plain = _plain_host(text)
    if _SPACE.search(plain) or _RELATIVE.match(plain):
        return False
    return _HOST_LIKE.fullmatch(plain) is not None or bool(_host_by_look(text))


def _host_by_look(text: str) -> str:
    """Return a word that is a host, with or without a port and a path, and not the name of a file; else nothing.

    A word with other characters than ASCII is returned as it is: an :class:`Egress` rejects it.
    """
    plain = _plain_host(text)
    remote = _REMOTE.fullmatch(plain)
    word = (remote[1] or remote[2]) if remote else plain
    found = _ADDRESS.fullmatch(word)
    if found is None and not remote:
        return _ipv6(plain)
    is_host = (
        remote or found is None or found["rest"] or found["end"] is None or found["end"].lower() not in _file_endings()
    )
    return "" if not is_host else word if text.isascii() else text


def _hosts_by_look(text: str) -> list[str]:
    """Return a text that is a host, or the hosts in a text that is a list of hosts."""
    if whole := _host_by_look(text.strip()):
        return [whole]
    hosts = []
    for word in filter(None, _LISTED.split(text)):
        if not (host := _host_by_look(word)):
            return []
        hosts.append(host)
    return hosts


_LISTED = re.compile(r"""[\s,;|"'`<>(){}]+""")


def _ipv6(text: str) -> str:
    """Return an IPv6 address without brackets as it is written in a URL; nothing for any other text."""
    from ipaddress import IPv6Address

    try:
        return f"[{IPv6Address(text)}]" if text.count(":") > 1 else ""
    except ValueError:
        return ""


def _plain_host(text: str) -> str:
    """Return a host as programs read it: decoded, without invisible characters, and with plain letters and dots."""
    from unicodedata import normalize

    decoded_text = unquote(text)
    if decoded_text.isascii():
        return decoded_text
    return _DOTS.sub(".", re.sub(_INVISIBLE, "", normalize("NFKC", decoded_text)))


@cache
def _file_endings() -> frozenset[str]:
    """Return the usual endings of file names. Some are those of hosts too: a host that ends in one is not found."""
    from mimetypes import MimeTypes

    known = {ending[1:] for table in MimeTypes().types_map for ending in table} - {"com"}
    return frozenset(
        (*known, *("md", "toml", "yaml", "yml", "lock", "log", "cfg", "ini", "sql", "rs", "go", "ts", "sh"))
    )


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


_WRITTEN = frozenset(
    ("body", "code", "comment", "content", "contents", "description", "message", "prompt", "reply", "summary", "text")
)
"""Names of parameters for text that a model writes."""


def is_written_freely(name: str, schema: object) -> bool:
    """Whether a parameter is for text that a model writes, rather than takes from the conversation.

    Its name says so, such as ``text`` or ``message``, or its schema has ``"x-grounded": false``.

    Example::

        >>> is_written_freely("message", {"type": "string"}), is_written_freely("city", {"type": "string"})
        (True, False)
    """
    return name in _WRITTEN or (isinstance(schema, Mapping) and schema.get("x-grounded") is False)
