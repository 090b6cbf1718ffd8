"""Run measurements, each in its own process, interleaved."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from call import call

HERE = Path(__file__).parent
OWN = ("bare", "hookline_")
"""Peers that need no environment of their own."""
QUIET = {
    "ENABLE_INSTRUMENTATION": "false",
    "LANGSMITH_TRACING": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OTEL_SDK_DISABLED": "true",
    "PYTHONWARNINGS": "ignore",
}
"""Other frameworks are measured without the tracing that is on in some of them."""

T = TypeVar("T")


def title(peer: str) -> str:
    """Return the name of a peer as shown on the page."""
    return "hand-written loop" if peer == "bare" else peer.strip("_").replace("_", "-")


class Lab:
    """The interface through which a section measures.

    Args:
        pythons: the interpreter of each peer that has an environment.
        quick: run tiny sizes once in this process, to check that everything works.
        tell: called with the current measurement, the number done and the total.
    """

    def __init__(
        self,
        pythons: Mapping[str, str],
        *,
        quick: bool = False,
        tell: Callable[[str, int, int], None] = lambda what, done, of: None,
    ) -> None:
        self.pythons = dict.fromkeys(OWN, sys.executable) | dict(pythons)
        self.quick, self.tell = quick, tell

    @property
    def peers(self) -> list[str]:
        """Return all peers that can be measured."""
        return [name for name in self.pythons if (HERE / "peers" / f"{name}.py").exists()]

    def pick(self, usual: T, quick: T) -> T:
        """Return the size, or the tiny one in quick mode."""
        return quick if self.quick else usual

    def turns(self, things: Iterable[T], rounds: int, label: Callable[[T], str] = str) -> Iterator[T]:
        """Yield every item once per round, in a different order each round."""
        taken = list(things)
        for number in range(rounds):
            random.Random(number).shuffle(order := list(taken))
            for index, thing in enumerate(order):
                told = f"{label(thing)}, round {number + 1} of {rounds}" if rounds > 1 else label(thing)
                self.tell(told, number * len(taken) + index, rounds * len(taken))
                yield thing

    def probe(self, function: str, **options: Any) -> Any:
        """Call a function of this folder in a new process and return its result as plain data."""
        return self.probe_source(None, function, **options)

    def probe_source(self, source: Path | None, function: str, **options: Any) -> Any:
        """Do the same with the ``src`` folder of another version of Hookline; ``None`` for this checkout."""
        if self.quick:
            return json.loads(json.dumps(call(function, options)))
        return self._apart(sys.executable, function, options, {}, source)

    def peer(self, name: str, function: str, **options: Any) -> Any:
        """Call a function of ``probes.peer`` in the environment of a peer."""
        function, options = f"probes.peer:{function}", {"name": name, **options}
        if self.quick and name != "bare":  # the first line is printed at once
            return self.probe(function, **options)
        return self._apart(self.pythons[name], function, options, QUIET)

    def script(self, environment: str, file: str, *arguments: str) -> Any:
        """Run a script in an environment. Its lines are JSON: progress as a list, and the result at the end."""
        command = [self.pythons[environment], str(HERE / file), *arguments]
        env = {**os.environ, **QUIET, "PYTHONHASHSEED": "0", "PYTHONPATH": str(HERE.parent / "src")}
        result: Any = None
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as running:
            for line in running.stdout or ():
                result = json.loads(line)
                if isinstance(result, list):
                    self.tell(*result)
        if running.returncode:
            raise RuntimeError(f"{file} ended with {running.returncode}: see above")
        return result

    @staticmethod
    def _apart(
        python: str,
        function: str,
        options: dict[str, Any],
        environment: Mapping[str, str],
        source: Path | None = None,
    ) -> Any:
        path = os.pathsep.join((str(HERE), str(source or HERE.parent / "src")))  # by default this checkout
        command = [python, str(HERE / "call.py"), function, json.dumps(options)]
        env = {**os.environ, **environment, "PYTHONHASHSEED": "0", "PYTHONPATH": path}
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        if done.returncode:
            raise RuntimeError(f"{function} {options}: {done.stderr[-2000:]}")
        return json.loads(done.stdout.splitlines()[-1])
