"""A team whose first agent hands over: ``python handoff_scene.py FOLDER MOMENT`` runs it and kills itself at a moment.

The moments: ``end``, before the end of the first run is stored; ``claim``, between the two runs; ``model``, in the
first model call of the second run.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any, Never

from hookline import Agent, HookResult, ScriptedModel, call, guard, reply, tool
from hookline.stores import RunStore
from hookline.teams import Team


def kill() -> Never:
    """End this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def make_team(folder: Path, moment: str = "") -> Team:
    """Make the team, as each process does."""

    def clerk(request: Any) -> Any:
        with open(folder / "asked", "a") as file:
            file.write(f"{request.ids.run_id}\n")
        return call("handoff", to="expert", message="yours")

    def expert(request: Any) -> Any:
        if moment == "model":
            kill()
        done = sum(message.role == "tool" for message in request.messages)
        turns = [call("wipe"), call("handoff", to="clerk", message="back"), reply("it is done")]
        return turns[done - 1]

    @tool
    def wipe() -> str:
        """Wipe."""
        (folder / "wiped").touch()
        return "wiped"

    @guard("before_tool", tools="wipe")
    def no_wiping(ctx: Any, request: Any) -> HookResult:
        return HookResult.block("No wiping.")

    team = Team(max_handoffs=1)
    team.add(Agent("clerk", llm=ScriptedModel([clerk], loop=True), tools=[team], hooks=[no_wiping]))
    team.add(Agent("the expert", llm=ScriptedModel([expert], loop=True), tools=[team, wipe]), "expert")
    return team


def main() -> None:
    """Run the team."""
    folder, moment = Path(sys.argv[1]), sys.argv[2]
    store = RunStore(folder / "runs.db")
    append, claim = store.journal.append, store.journal.claim

    def append_or_die(write: Any, **options: Any) -> None:
        if moment == "end" and write.status:
            kill()
        append(write, **options)

    def claim_or_die(run_id: str, *args: Any) -> Any:
        if moment == "claim" and run_id == "r+1":
            kill()
        return claim(run_id, *args)

    store.journal.append, store.journal.claim = append_or_die, claim_or_die  # type: ignore[method-assign]
    make_team(folder, moment).run("go", durable=store, run_id="r")


if __name__ == "__main__":
    main()
