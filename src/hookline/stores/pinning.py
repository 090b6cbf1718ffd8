"""Pinning: a durable run is continued only by processes whose agent behaves as the one that it was started with."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from .._base.frozen import json_encoder
from .._base.package import __version__
from .._kernel.registry import HookStack
from ..records.encoding import describe_hooks
from ..records.format import HookInfo

_known_digests: dict[int, tuple[Any, str]] = {}


def digest_of(answerer: Any) -> str:
    """Return a digest of everything that decides how an agent behaves: hooks, instructions, tools and version.

    A run is continued only where the digest is the same. For a roster, it covers all personalities, because they hand
    over to each other. It does not cover what a hook reads from files, nor the arguments that it was created with:
    if they make a difference, recovery notices it.
    """
    hooks = answerer.hooks.stack
    known = _known_digests.get(id(answerer))
    if known is not None and known[0] is hooks:
        return known[1]
    personalities = sorted(getattr(answerer, "personalities", None) or ())
    agents = [answerer[id] for id in personalities] or [getattr(answerer, "base", answerer)]
    content = [__version__, _deciding(hooks), [_describe(agent) for agent in agents]]
    digest = hashlib.sha256(msgspec.json.encode(content)).hexdigest()[:16]
    _known_digests[id(answerer)] = hooks, digest
    return digest


def _describe(agent: Any) -> Any:
    tools = sorted(
        (tool.name, tool.spec.description, hashlib.sha256(json_encoder.encode(tool.spec.parameters)).hexdigest())
        for tool in getattr(agent, "tools", ())
    )
    own = getattr(agent, "hooks", None)
    hooks = [] if own is None else _deciding(own.stack)
    model = getattr(agent, "model", None)
    return [getattr(agent, "name", ""), getattr(agent, "instructions", ""), tools, hooks, getattr(model, "name", "")]


def _deciding(stack: HookStack) -> list[HookInfo]:
    """Return the hooks that do not only observe."""
    return [hook for hook in describe_hooks(stack)[1] if any(at.phase != "observe" for at in hook.points.values())]
