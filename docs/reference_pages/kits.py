"""Generate `reference/kits.md`: what programs that others wrote find when they use a server, or serve an MCP client."""

import json
from pathlib import Path

from .markdown import cell, table

RESULTS = Path(__file__).parents[2] / "tests" / "kits" / "results.json"
"""Written by `make test-kits RESULTS=1`, and compared by every other run of `make test-kits`."""

NAMES = {
    "openai_python": "OpenAI SDK for Python",
    "openai_js": "OpenAI SDK for JavaScript",
    "llm": "`llm`",
    "litellm": "LiteLLM",
    "vercel_ai": "Vercel AI SDK",
    "mcp": "MCP client conformance",
    "decide_client": "TypeScript client of `POST /decide`",
    "litellm_guardrail": "LiteLLM's generic guardrail",
}

HEAD = """# Other programs

Programs that others wrote, against a real `hookline serve`: clients of the [OpenAI API](../guides/openai.md), LiteLLM
and a program in TypeScript that [ask the hooks](../guides/decide.md), and the conformance tests for MCP clients against
[`mcp(...)`](../guides/tools.md). Each is installed in an environment of its
own. This page is generated from the results (`make test-kits RESULTS=1`, then `make docs`); `make test-kits` fails if
it finds anything else.

"""

TAIL = """
The scenarios of MCP about OAuth are not run: `mcp(..., headers=...)` sends the headers that you give it. The
[A2A](../guides/a2a.md) kit is on no registry; our own tests have its cases.
"""


def page(_: str) -> str:
    """Return the page."""
    rows = [
        (f"{NAMES[name]} ({', '.join(each for each in found['installed'])})", cell(sentence), cell(answer))
        for name, found in json.loads(RESULTS.read_text()).items()
        for sentence, answer in found["cases"].items()
    ]
    return HEAD + table(("Program", "What it does", "Works"), rows) + TAIL
