"""The files that ``hookline new`` writes; ``NAME`` stands for the name."""

HOOK = '''"""A guard: it judges each tool call before it runs."""

from os.path import normpath

from hookline import BEFORE_TOOL, HookResult, guard


@guard(BEFORE_TOOL, tools="delete_*")
def NAME(ctx, request):
    """Block calls that delete something outside the folder tmp/."""
    path = str(request.arguments.get("path", ""))
    if not normpath(path).startswith("tmp/"):  # tmp/../thesis.doc is not in tmp/
        return HookResult.block(f"Only files in tmp/ may be deleted, not {path!r}.", reason="outside tmp/")
    return None  # let it pass
'''

HOOK_TEST = '''from NAME import NAME

from hookline import BEFORE_TOOL, call, reply, tool
from hookline.testing import fire_hook, scripted_agent


def test_files_in_tmp_may_be_deleted():
    verdict = fire_hook(NAME, BEFORE_TOOL, name="delete_file", arguments={"path": "tmp/a.txt"})
    assert verdict.action == "cont"


def test_other_files_stay():
    deleted = []

    @tool
    def delete_file(path: str) -> str:
        """Delete one file."""
        deleted.append(path)
        return "deleted"

    turns = [call("delete_file", path="thesis.doc"), call("delete_file", path="tmp/../thesis.doc"), reply("I may not.")]
    result = scripted_agent(turns, tools=[delete_file], hooks=[NAME]).run("clean up")
    assert deleted == []
    assert result.reply == "I may not."
'''

TOOL = '''"""A tool: the model sees its name, its parameters and its docstring."""

from hookline import tool


@tool
def NAME(text: str, longest: bool = False) -> str:
    """Count the words of a text.

    Args:
        text: the text.
        longest: name the longest word too.
    """
    words = text.split()
    answer = f"{len(words)} words"
    if longest and words:
        answer += f", the longest is {max(words, key=len)!r}"
    return answer
'''

TOOL_TEST = """from NAME import NAME

from hookline import call, reply
from hookline.testing import scripted_agent


def test_it_counts_words():
    assert NAME("one two three") == "3 words"


def test_a_model_can_call_it():
    turns = [call("NAME", text="a little test", longest=True), reply("Done.")]
    result = scripted_agent(turns, tools=[NAME]).run("count")
    assert result.messages[2].content == "3 words, the longest is 'little'"
"""

PERSONALITY = """# Who the agent can be. What is left out here is as the settings say; their hooks always hold.
description = "Finds what is wrong with a text, and says it kindly"
instructions = \"\"\"
You are NAME. Read what you are given, name its three weakest points, and say how to mend each.
\"\"\"

# model = "openai:gpt-5-mini"         # another model, and its settings:
# params = { temperature = 0 }
# tools = ["read_*", "tools.py"]      # only these tools; "*" for all, FILE.py for more
# plugins = []                        # only these plugins
# guards = [{ use = "RateLimitHook", args = { per_minute = 10 } }]    # hooks on top
# delegates = ["coder"]               # whom it may delegate and hand over to
# max_steps = 5
"""

TEMPLATES = {"hook": (HOOK, HOOK_TEST), "tool": (TOOL, TOOL_TEST)}
