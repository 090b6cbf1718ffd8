"""Stop every agent with a kill switch.

Create a file (`touch STOP`), and every run with this hook stops before its next model call or tool, in every program.
`stop` is not an error: open calls get a result, the session keeps the work so far, and hooks at the end of the run are
called.
"""

import tempfile
from pathlib import Path

from hookline import BEFORE_LLM, BEFORE_TOOL, Agent, AgentContext, HookResult, ScriptedModel, call, tool


class StopAtKillSwitch:
    points = frozenset({BEFORE_LLM, BEFORE_TOOL})
    phase = "guard"
    priority = 200

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, point: str, ctx: AgentContext, payload: object) -> HookResult | None:
        return HookResult.stop(f"There is a file {self.file.name}.") if self.file.exists() else None


stop_at_a_kill_switch = StopAtKillSwitch(Path("STOP"))

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        switch = Path(folder, "STOP")

        @tool
        def work(n: int) -> str:
            """Work on the next part."""
            if n == 2:
                switch.touch()  # someone presses the switch
            return f"part {n} is done"

        llm = ScriptedModel([call("work", n=n) for n in range(1, 100)])
        result = Agent("worker", llm=llm, tools=[work], hooks=[StopAtKillSwitch(switch)]).run("Work.")
        print(f"{result.status} after {result.tool_calls} calls: {result.stop and result.stop.message}")

# prints:
# stopped after 2 calls: There is a file STOP.
