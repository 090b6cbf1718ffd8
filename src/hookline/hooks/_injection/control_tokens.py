"""Removal of control tokens and invisible characters from untrusted text.

Most chat templates write their tokens in one of a few shapes, such as ``<|name|>``: these are recognised with any name,
so that future models are covered. Tokens that look like tags or like words in brackets are listed by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..._base.frozen import Frozen

OPEN, CLOSE = "‹", "›"
"""Replacements for the brackets of a control token."""

_LT = "<\uff1c\ufe64\u2329\u3008\u27e8\u276e\u02c2\u1438"
_GT = ">\uff1e\ufe65\u232a\u3009\u27e9\u276f\u02c3\u1433"
_BAR = "|\uff5c\u00a6\u2502\u2503\u2758\u2759\u01c0\u2223\u23d0"
_SQUARE, _SQUARE_END = r"\[" "\uff3b\u3010\u3014\u2772\u27e6", r"\]" "\uff3d\u3011\u3015\u2773\u27e7"
_SLASH, _EQUALS = "[/\uff0f\u2044\u2215]", "[=\uff1d]"
_COLON = ":\uff1a\ufe55\ufe13\u2236\ua789"
_LOOKALIKES = {
    "a": "аαɑ",
    "b": "ьƅ",
    "c": "сϲ",
    "d": "ԁ",
    "e": "еεҽ",
    "f": "ƒ",
    "g": "ɡ",
    "h": "һн",
    "i": "іιɪı1",
    "k": "кκ",
    "l": "ӏ1",
    "m": "м",
    "n": "ոηɴ",
    "o": "оο0",
    "p": "рρ",
    "r": "гʀ",
    "s": "ѕꜱ",
    "t": "тτ",
    "u": "սυ",
    "v": "ѵν",
    "w": "ԝω",
    "x": "хχ",
    "y": "уүγ",
}


def _letter(letter: str) -> str:
    if letter == "_":
        return r"[\s_\uff3f.\u2581-]{0,3}"
    wide = chr(ord(letter) + 0xFEE0) + chr(ord(letter.upper()) + 0xFEE0)
    return f"[{letter}{letter.upper()}{wide}{_LOOKALIKES.get(letter, '')}{_LOOKALIKES.get(letter, '').upper()}]"


def _spelt(*words: str) -> str:
    """Return an expression that matches these words in look-alike letters and with spaces, without backtracking."""
    tails: dict[str, list[str]] = {}
    for word in words:
        if word:
            tails.setdefault(word[0], []).append(word[1:])
    found = "|".join(_letter(first) + _rest(rest) for first, rest in tails.items())
    return f"(?:{found})"


def _rest(tails: list[str]) -> str:
    more = [tail for tail in tails if tail]
    if not more:
        return ""
    return rf"\s?{_spelt(*more)}" if len(more) == len(tails) else rf"(?:\s?{_spelt(*more)})?"


_TAGS = _spelt(
    "s",
    "bos",
    "eos",
    "unk",
    "pad",
    "cls",
    "sep",
    "mask",
    "sys",
    "system",
    "assistant",
    "human",
    "start_of_turn",
    "end_of_turn",
    "start_of_image",
    "end_of_text",
    "endoftext",
    "begin_of_text",
    "im_start",
    "im_end",
    "tool_call",
    "tool_calls",
    "tool_response",
    "tool_responses",
    "tool_result",
    "tool_results",
    "tool_use",
    "tool_output",
    "tool_outputs",
    "tool_code",
    "tools",
    "function_call",
    "function_calls",
    "function_response",
    "function_result",
    "function_results",
    "functions",
    "invoke",
    "think",
    "thinking",
    "system_prompt",
    "system_reminder",
    "system_message",
    "available_tools",
    "arg_key",
    "arg_value",
    "sop",
    "eop",
    "begin_of_sentence",
    "beginning_of_sentence",
    "end_of_sentence",
    "end_of_image",
    "start_of_audio",
    "end_of_audio",
    "start_function_call",
    "end_function_call",
    "start_function_declaration",
    "end_function_declaration",
    "start_function_response",
    "end_function_response",
    "scratch_pad",
    "fim_prefix",
    "fim_middle",
    "fim_suffix",
    "bos_token",
    "eos_token",
    "pad_token",
    "unk_token",
    "eop_token",
    "mask_token",
)
_NAMESPACED = _spelt(
    "bos", "eos", "pad", "think", "thinking", "invoke", "tool_call", "tool_calls", "tool_response", "function_call"
)
_WORDS = _spelt(
    "inst",
    "system_prompt",
    "tool_call",
    "tool_calls",
    "tool_results",
    "tool_content",
    "available_tools",
    "model_settings",
    "call_id",
    "start_header_id",
    "end_header_id",
    "begin_audio",
    "img_break",
    "img_end",
    "gmask",
    "smask",
)
_CAPITALS = "ARGS|AUDIO|BOS|EOS|EOT|IMG|MASK|MIDDLE|PAD|PREFIX|SUFFIX|THINK|TRANSCRIBE|UNK"
"""Words that are tokens in capital letters only: ``[args]`` is common in ordinary text."""
_NUMBERED = _spelt("special", "extra_id", "extra_token", "reserved", "reserved_special_token", "unused", "unused_token")
_TURNS = _spelt(
    "turn", "channel", "message", "tool", "tool_call", "tool_response", "think", "image", "audio", "video", "system"
)
_SPEAKERS = _spelt("system", "user", "assistant", "tool", "end_of_turn", "bos", "eos")
_ROLES = _spelt("human", "assistant", "system", "user", "developer")

_PIPED = re.compile(rf"[{_LT}](\s?{_SLASH}?\s?[{_BAR}][^{_LT}{_GT}{_BAR}\n]{{1,64}}[{_BAR}]\s?)[{_GT}]")
_PART = r"[\w\u2581\uff3f.:-]{1,64}"
_HALF_PIPED = re.compile(
    rf"[{_LT}]({_SLASH}?[{_BAR}]{_PART}|{_SLASH}?{_PART}[{_BAR}]|\s?[{_BAR}]\s?{_TURNS}\s?|\s?{_TURNS}\s?[{_BAR}]\s?"
    rf"|\s?{_SLASH}?\s?[{_BAR}]\s?{_PART}\s?[{_BAR}]\s?\w[^{_LT}{_GT}{_BAR}\n]{{0,200}})[{_GT}]"
)
_TAGGED = re.compile(
    rf"[{_LT}][{_LT}]?(?=\s?{_SLASH}?\s?\w)(\s?{_SLASH}?\s?(?:(?:{_TAGS})(?!\w)|{_spelt('antml')}\s?[{_COLON}]"
    rf"|\w{{1,16}}\s?[{_COLON}]\s?(?:{_NAMESPACED})(?!\w)|(?:{_NUMBERED})[_\uff3f]?\d{{1,4}}(?!\w)"
    rf"|(?:{_spelt('function', 'parameter')})(?:\s?{_EQUALS}|\s+(?:{_spelt('name')})))"
    rf"[^{_LT}{_GT}\n]{{0,200}})[{_GT}]{{0,2}}"
)
_SQUARED = re.compile(
    rf"[{_SQUARE}](\s?{_SLASH}?\s?(?:{_WORDS}|(?:{_NUMBERED})[_\uff3f]?\d{{1,4}}|[{_BAR}]\s?{_SPEAKERS}\s?[{_BAR}])\s?)"
    rf"[{_SQUARE_END}]"
)
_WIDE_CAPITALS = "|".join("".join(chr(ord(sign) + 0xFEE0) for sign in word) for word in _CAPITALS.split("|"))
_CAPITALISED = re.compile(rf"[{_SQUARE}]({_SLASH}?(?:{_CAPITALS}|{_WIDE_CAPITALS}))[{_SQUARE_END}]")
_TILDE, _BANG = "[~\uff5e]", "[!\uff01]"
_CROSSED = re.compile(  # MiniMax: ]~b], ]!p~[ and others
    rf"[{_SQUARE}{_SQUARE_END}]({_TILDE}{_BANG}?{_letter('b')}|{_letter('e')}{_TILDE}"
    rf"|{_BANG}(?:{_letter('p')}|{_letter('d')}|{_letter('s')}){_TILDE})[{_SQUARE}{_SQUARE_END}]"
)
_PATTERNS = (_PIPED, _HALF_PIPED, _TAGGED, _SQUARED, _CROSSED)
_OWN = re.compile(rf"[{_SQUARE}](?=\s?(?:{_spelt('end_of_')})?(?:{_spelt('untrusted')}))")
_SPOKEN = re.compile(
    r"([\n\r\v\f\x1c-\x1e\x85\u2028\u2029\\](?:(?<=\\)[nr]|(?<!\\))[ \t>#*-]{0,8})"
    rf"({_ROLES})(?=[ \t*]{{0,3}}[{_COLON}])"
)

_BRACKETS = {ord(c): OPEN for c in _LT + _SQUARE.strip("\\")} | {ord(c): CLOSE for c in _GT + _SQUARE_END.strip("\\")}
_MAX_TOKENS = 20_000
_OPENING = re.compile(rf"[{_LT}{_SQUARE}{_SQUARE_END}]")
_TELLING = re.compile(
    rf"\s?{_SLASH}?\s?(?:\w+\s?[_:-]\s?\w|(?:{_spelt('sys', 'system', 'invoke', 'assistant')})(?!\w))"
)

_ESCAPES = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1b\x7f]+")
_JOINERS = "\u200c\u200d\ufe0e\ufe0f"
_JOINED = "\u0600-\u0dff\ufe0f\u2190-\u2bff\U0001f000-\U0001faff"  # scripts and emoji in which joiners are spelling
_INVISIBLE = re.compile(
    r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f"
    r"\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff"
    r"\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)
_LOOSE = re.compile(
    rf"(?<![{_JOINED}])[\u200c\u200d]|[\u200c\u200d](?![{_JOINED}])|[\ufe0e\ufe0f]{{2,}}|(?<=[A-Za-z\s])[\ufe0e\ufe0f]"
)


class Token(Frozen, frozen=True):
    """A control token, and whether its spelling hides it: other alphabets, spaces, invisible characters."""

    text: str
    disguised: bool


class Cleaned(Frozen, frozen=True):
    """A text without control tokens and invisible characters, and how many of them were removed."""

    text: str
    tokens: int = 0
    invisible: int = 0


def visible(text: str) -> str:
    """Remove invisible characters."""
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    if text.isascii():
        return _CONTROLS.sub("", text)
    text = _INVISIBLE.sub("", text)
    if any(joiner in text for joiner in _JOINERS) and (spelling := _LOOSE.sub("", text)) != text:
        tidy = _LOOSE.search(spelling) is None  # removing one may make the next one removable
        text = spelling if tidy else re.sub(f"[{_JOINERS}]+", "", spelling)
    return text


def neutralise(text: str) -> Cleaned:
    """Remove invisible characters and break every control token, so that no chat template recognises one.

    The brackets of control tokens (``<|im_start|>``, ``[INST]``, ``<tool_call>``) and of our own fences become ``‹ ›``;
    role names at the start of a line get such brackets. The text stays readable.
    """
    seen = visible(text)
    out, count = seen, 0
    if _OPENING.search(out):
        for pattern in (*_PATTERNS, _CAPITALISED):
            out, found = pattern.subn(_without_brackets, out, _MAX_TOKENS)
            count += found
            if found == _MAX_TOKENS:
                out = _all_without_brackets(out)
        out, own = _OWN.subn(OPEN, out)
        count += own
    out, roles = _SPOKEN.subn(rf"\1{OPEN}\2{CLOSE}", f"\n{out}")
    return Cleaned(out[1:], count + roles, len(text) - len(seen))


def control_tokens(text: str) -> Iterator[Token]:
    """Yield the control tokens in a text, without ``<s>``, ``<mask>`` and others that are common in HTML."""
    if not _OPENING.search(text):
        return
    seen = visible(text)
    for pattern in _PATTERNS:
        for found in pattern.finditer(seen):
            name = _TELLING.match(found[1]) if pattern is _TAGGED else found
            if name:
                spaced = pattern is _TAGGED and len(name[0].split()) > 1
                yield Token(found[0], spaced or not found[0].isascii() or found[0] not in text)


def _without_brackets(token: re.Match[str]) -> str:
    return token[0].translate(_BRACKETS)


def _all_without_brackets(text: str) -> str:
    """Replace every bracket: faster for a text with very many tokens."""
    for bracket, mark in _BRACKETS.items():
        text = text.replace(chr(bracket), mark)
    return text
