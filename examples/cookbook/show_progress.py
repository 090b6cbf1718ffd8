"""Show the progress of a long tool.

A tool with a parameter `ctx` may report its progress; hooks at `on_progress` get each report, between one `tool_start`
and one `tool_end` for every call. Here they print a bar in the terminal; the command line and the server show progress
automatically.
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
def train_model(epochs: int, ctx: AgentContext) -> str:
    """Train a model."""
    for epoch in range(1, epochs + 1):
        ctx.progress(epoch / epochs, f"epoch {epoch} of {epochs}")
    return "trained"


if __name__ == "__main__":
    llm = ScriptedModel([call("train_model", epochs=4), "It is trained."])
    print(Agent("trainer", llm=llm, tools=[train_model], hooks=[show_progress]).run("Train a model.").reply)

# prints:
# [##--------] train_model: epoch 1 of 4 (25%)
# [#####-----] train_model: epoch 2 of 4 (50%)
# [########--] train_model: epoch 3 of 4 (75%)
# [##########] train_model: epoch 4 of 4 (100%)
# train_model: ok
# It is trained.
