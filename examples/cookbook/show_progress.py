"""Show how far a long tool is.

A tool with a parameter `ctx` may report its progress; hooks at `on_progress` get each report, between one `tool_start`
and one `tool_end` for every call. Here they become a bar in the terminal; the command line and the server show them by
themselves.
"""

from hookline import ON_PROGRESS, Agent, AgentContext, Progress, ScriptedModel, call, observer, tool


@observer(ON_PROGRESS)
def show_progress(ctx: AgentContext, progress: Progress) -> None:
    if progress.phase == "tool_end":
        print(f"{progress.tool}: {progress.outcome}")
    elif progress.fraction is not None:
        done = round(progress.fraction * 10)
        print(f"[{'#' * done:-<10}] {progress.message}")


@tool
def copy_files(count: int, ctx: AgentContext) -> str:
    """Copy files."""
    for number in range(1, count + 1):
        ctx.progress(number / count, f"file {number} of {count}")
    return "copied"


if __name__ == "__main__":
    llm = ScriptedModel([call("copy_files", count=4), "All copied."])
    print(Agent("copier", llm=llm, tools=[copy_files], hooks=[show_progress]).run("Copy the files.").reply)

# prints:
# [##--------] copy_files: file 1 of 4 (25%)
# [#####-----] copy_files: file 2 of 4 (50%)
# [########--] copy_files: file 3 of 4 (75%)
# [##########] copy_files: file 4 of 4 (100%)
# copy_files: ok
# All copied.
