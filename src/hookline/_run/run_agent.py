"""An agent as a run sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol, get_args

from .._kernel.registry import HookRegistry
from ..models.protocol import Model
from ..tools.registry import ToolRegistry
from .budget import Limits
from .events import Sink
from .output import OutputSpec

StreamMode = Literal["safe", "live"]
"""When the text of a reply is shown: ``safe``, once no hook can reject it any more, or ``live``, always at once."""
STREAM_MODES: tuple[StreamMode, ...] = get_args(StreamMode)


class RunAgent(Protocol):
    """The attributes of an :class:`~hookline.Agent` that its runs read."""

    name: str
    instructions: str
    model: Model
    tools: ToolRegistry
    hooks: HookRegistry
    params: Mapping[str, Any]
    response_format: Any
    output_spec: OutputSpec | None
    output_retries: int
    limits: Limits
    deps_type: Any
    allowed_plugins: tuple[str, ...] | None
    sinks: tuple[Sink, ...]
    stream_mode: StreamMode
    max_parallel_tools: int
    max_attachment: int | None
    unchecked_globs: bool
    """Whether the ``tools=`` globs of its hooks have not been checked against its tools yet."""

    def tools_for(self, allowed_plugins: tuple[str, ...] | None) -> ToolRegistry:
        """Return the tools of a run with this filter."""
        ...
