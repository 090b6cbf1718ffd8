"""Results of MCP servers as hooks see them, and results as hooks have changed them.

Hooks see the text of a result, as they do for the tools of ``hookline.tools.mcp``: texts as they are, images and other
files described in words and attached. If ``structuredContent`` says more than the text, they see both. What hooks
change is written anew from what they returned, so nothing that they removed survives in another field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from ..._base.attachment import Attachment, AttachmentError, attachment_of_base64
from ..._base.frozen import json_text, thaw
from ..._kernel.payloads import ToolCallResult
from .protocol import Message
from .run import RefusedError

_ATTACHED = ("image/", "audio/", "application/pdf")
_NO_MESSAGE = "the tool failed without a message"


class Reading(msgspec.Struct):
    """A result as hooks see it."""

    value: Any
    """What hooks get: a text, or JSON."""
    attachments: tuple[Attachment, ...] = ()
    failed: bool = False
    structured: Any = None
    """The part of the result that repeats the text as data; ``None`` if there is none."""
    files: dict[str, Message] = {}
    """The blocks of attachments, by digest."""


def read_tool_result(result: Message) -> Reading:
    """Read the result of ``tools/call``.

    Raises:
        RefusedError: it is not such a result.
    """
    blocks = result.get("content", [])
    structured = result.get("structuredContent")
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise RefusedError("The server's result is invalid, so it is withheld.")
    if "task" in result or result.get("resultType", "complete") != "complete":
        raise RefusedError("The server's result has a form that cannot be judged, so it is withheld.")
    texts: list[str] = []
    attached: list[Attachment] = []
    files: dict[str, Message] = {}
    for block in blocks:
        found = _attachment(block)
        if found is None:
            texts.append(_block_text(block))
        else:
            attached.append(found)
            files[found.digest] = block
    text = "\n".join(texts)
    if result.get("isError"):
        more = "" if structured is None else json_text(structured)
        return Reading("\n".join(filter(None, (text, more))) or _NO_MESSAGE, failed=True)
    value: Any = text
    if structured is not None and not _repeats(text, structured):
        value = {"text": text, "structuredContent": structured}
    return Reading(value, tuple(attached), False, structured, files)


def is_unchanged(reading: Reading, settled: ToolCallResult) -> bool:
    """Whether hooks left a successful result as it was."""
    if settled.error is not None or settled.outcome != "ok":
        return False
    if [each.digest for each in settled.attachments] != [each.digest for each in reading.attachments]:
        return False
    given, now = reading.value, settled.result
    if isinstance(given, str) or isinstance(now, str):
        return type(given) is type(now) and bool(given == now)
    return _strictly(given) == _strictly(thaw(now))


def write_tool_result(settled: ToolCallResult, reading: Reading | None) -> Message:
    """Return the result that hooks made."""
    if settled.error is not None:
        return {"content": [{"type": "text", "text": settled.error}], "isError": True}
    value, structured = thaw(settled.result), None
    if isinstance(value, dict) and set(value) == {"text", "structuredContent"}:
        value, structured = value["text"], value["structuredContent"]
    elif reading is not None and isinstance(value, str) and reading.structured is not None:
        structured = _structured_from(value, reading.structured)
    elif isinstance(value, dict):
        structured = value
    text = value if isinstance(value, str) else json_text(value)
    content: list[Message] = [{"type": "text", "text": text}] if text else []
    files = {} if reading is None else reading.files
    content += [files[each.digest] for each in settled.attachments if each.digest in files]
    return {"content": content} if structured is None else {"content": content, "structuredContent": structured}


def read_resource(result: Message) -> Reading:
    """Read the result of ``resources/read``.

    Raises:
        RefusedError: it is not such a result.
    """
    contents = result.get("contents")
    if not isinstance(contents, list) or not all(isinstance(each, dict) for each in contents):
        raise RefusedError("The server's result is invalid, so it is withheld.")
    attached = [(_attachment({"type": "resource", "resource": each}), each) for each in contents]
    files = {found.digest: each for found, each in attached if found is not None}
    text = "\n".join(_held_text(each) for found, each in attached if found is None)
    return Reading(text, tuple([found for found, _ in attached if found is not None]), files=files)


def write_resource(settled: ToolCallResult, reading: Reading | None, uri: str) -> Message:
    """Return the contents that hooks made."""
    text = settled.result if isinstance(settled.result, str) else json_text(settled.result)
    contents: list[Message] = [{"uri": uri, "mimeType": "text/plain", "text": text}] if text else []
    files = {} if reading is None else reading.files
    return {"contents": contents + [files[each.digest] for each in settled.attachments if each.digest in files]}


def read_prompt(result: Message) -> Reading:
    """Read the result of ``prompts/get``: a list of roles and texts.

    Raises:
        RefusedError: it is not such a result.
    """
    messages = result.get("messages")
    if not isinstance(messages, list) or not all(
        isinstance(each, dict) and isinstance(each.get("content"), dict) for each in messages
    ):
        raise RefusedError("The server's result is invalid, so it is withheld.")
    return Reading([{"role": str(each.get("role")), "text": _block_text(each["content"])} for each in messages])


def write_prompt(settled: ToolCallResult) -> Message:
    """Return the prompt that hooks made. Texts only; a text instead of the list is one message of the user."""
    value = thaw(settled.result)
    if not isinstance(value, list) or not all(isinstance(each, dict) and "text" in each for each in value):
        value = [{"role": "user", "text": value if isinstance(value, str) else json_text(value)}]
    return {
        "messages": [
            {
                "role": "assistant" if each.get("role") == "assistant" else "user",
                "content": {"type": "text", "text": str(each["text"])},
            }
            for each in value
        ]
    }


def value_of_answer(answer: Any) -> Any:
    """Return what hooks see of a client's answer to a server: the text of a model, or the whole answer."""
    content = answer.get("content") if isinstance(answer, dict) else None
    if isinstance(content, dict) and content.get("type") == "text" and isinstance(content.get("text"), str):
        return content["text"]
    return answer


def write_answer(settled: ToolCallResult, answer: Any) -> Any:
    """Return a client's answer to a server as hooks made it.

    Raises:
        RefusedError: it is no answer.
    """
    given, value = value_of_answer(answer), thaw(settled.result)
    if answer is not None and type(value) is type(given) and _strictly(value) == _strictly(given):
        return answer
    if isinstance(answer, dict) and isinstance(given, str) and isinstance(value, str):
        return {**answer, "content": {"type": "text", "text": value}}
    if isinstance(value, str):  # a hook that replaced the text of a form
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, dict):
        raise RefusedError("The answer is withheld.")
    return value


def _attachment(block: Message) -> Attachment | None:
    """Return the file in a content block; ``None`` if there is none, or if it is not what the server says."""
    kind = block.get("type")
    held = block.get("resource") if kind == "resource" else block
    if kind not in ("image", "audio", "resource") or not isinstance(held, dict):
        return None
    data, media_type = held.get("blob" if kind == "resource" else "data"), str(held.get("mimeType"))
    if not isinstance(data, str) or not media_type.startswith(_ATTACHED):
        return None
    try:
        return attachment_of_base64(data, media_type, str(held.get("uri") or ""), "content", max_size=None)
    except (TypeError, ValueError, AttachmentError):
        return None


def _block_text(block: Message) -> str:
    match block.get("type"):
        case "text":
            return str(block.get("text", ""))
        case "resource" if isinstance(block.get("resource"), dict):
            return _held_text(block["resource"])
        case "resource_link":
            about = [str(block[key]) for key in ("title", "description") if block.get(key)]
            return f"[link to {block.get('name')}: {block.get('uri')}{''.join(f', {each}' for each in about)}]"
        case _:
            return json_text(block)


def _held_text(held: Message) -> str:
    if isinstance(held.get("text"), str):
        return str(held["text"])
    if isinstance(held.get("blob"), str):
        return f"[file {held.get('uri')}: {held.get('mimeType') or 'unknown type'}, {len(held['blob']) * 3 // 4} bytes]"
    return json_text(held)


def _repeats(text: str, structured: Any) -> bool:
    """Whether structured content says the same as the text. Servers wrap a plain value in an object with one key."""
    if isinstance(structured, Mapping) and len(structured) == 1:
        (inner,) = structured.values()
        if isinstance(inner, str):
            return inner == text
        if _is_json_of(text, inner):
            return True
    return _is_json_of(text, structured)


def _is_json_of(text: str, value: Any) -> bool:
    try:
        return _strictly(json.loads(text)) == _strictly(value)
    except (ValueError, RecursionError):
        return False


def _strictly(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _structured_from(text: str, before: Any) -> Any:
    """Return structured content that says the same as a changed text, in the form it had; ``None`` if none does."""
    key, inner = next(iter(before.items())) if isinstance(before, Mapping) and len(before) == 1 else ("", None)
    if key and isinstance(inner, str):
        return {key: text}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if key and type(found) is type(inner) and not (isinstance(found, dict) and set(found) == {key}):
        return {key: found}
    return found if isinstance(found, type(before)) else None
