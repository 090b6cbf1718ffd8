"""Run the tests before the agent stops.

A coding agent says "done" without having run the tests since its last edit. At `on_stop` a hook checks the steps of the
run, and makes the model continue. A run can be continued three times, and a limit that is reached still applies, so the
run always ends.
"""

from hookline import ON_STOP, Agent, AgentContext, HookResult, ScriptedModel, Stopping, call, hook, tool


@hook(ON_STOP)
def run_tests_before_stopping(ctx: AgentContext, stopping: Stopping) -> HookResult | None:
    used = [name for step in ctx.state.steps for name in step.tool_names]
    edited = max((i for i, name in enumerate(used) if name == "edit"), default=-1)
    if edited == -1 or "run_tests" in used[edited:] or stopping.signals[0].kind != "completed":
        return None
    return HookResult.keep_going("You changed code after the last test run. Run the tests.", reason="not tested")


@tool
def edit(file: str) -> str:
    """Change a file."""
    return f"{file} is changed"


@tool
def run_tests() -> str:
    """Run the tests."""
    return "12 passed"


if __name__ == "__main__":
    llm = ScriptedModel([call("run_tests"), call("edit", file="a.py"), "Done.", call("run_tests"), "Now it is."])
    agent = Agent("coder", llm=llm, tools=[edit, run_tests], hooks=[run_tests_before_stopping])
    for message in agent.run("Mend the bug.").messages[1:]:
        print(f"{message.role}: {message.content or [c.name for c in message.tool_calls]}")

# prints:
# assistant: ['run_tests']
# tool: 12 passed
# assistant: ['edit']
# tool: a.py is changed
# assistant: Done.
# user: You changed code after the last test run. Run the tests.
# assistant: ['run_tests']
# tool: 12 passed
# assistant: Now it is.
