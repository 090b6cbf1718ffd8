"""Add the run and the tool to every log line.

Your tools log through libraries that know nothing of agents, and ten runs write to one log. A hook object with
`wrap(ctx, payload)` returns a context manager that is entered around the run, each model call and each tool, in the
task where it runs: the right place for context variables. It decides nothing.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from hookline import ON_RUN_END, Agent, AgentContext, ScriptedModel, ToolCallRequest, call, tool

current: ContextVar[str] = ContextVar("current", default="-")


class TagLogLines:
    points = frozenset({ON_RUN_END})  # a hook needs a point; this one does nothing there
    phase = "observe"

    def __call__(self, point: str, ctx: AgentContext, payload: object) -> None:
        pass

    @contextmanager
    def wrap(self, ctx: AgentContext, payload: object) -> Iterator[None]:
        token = current.set(f"{ctx.agent_name}/{payload.name if isinstance(payload, ToolCallRequest) else '-'}")
        try:
            yield
        finally:
            current.reset(token)

    def filter(self, record: logging.LogRecord) -> bool:
        record.current = current.get()
        return True


tag_log_lines = TagLogLines()


@tool
async def fetch(url: str) -> str:
    """Fetch a page."""
    logging.getLogger("http.library").warning("slow: %s", url)
    return "a page"


if __name__ == "__main__":
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(current)s %(name)s %(message)s"))
    handler.addFilter(tag_log_lines)
    logging.getLogger("http.library").addHandler(handler)
    llm = ScriptedModel([call("fetch", url="http://example.com"), "Read."])
    Agent("reader", llm=llm, tools=[fetch], hooks=[tag_log_lines]).run("Read the page.")

# prints:
# reader/fetch http.library slow: http://example.com
