"""Look for new failing examples: every test that uses hypothesis, with random examples instead of the fixed ones.

    make fuzz                     ten rounds, each with a seed of its own
    make fuzz SEED=1234 ROUNDS=1  the round that found something, again

Each round prints its seed first. A finding ends the search, prints the failing test with hypothesis' own example, and
says how to run that round again.
"""

import argparse
import os
import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def modules() -> list[str]:
    """The test modules that use hypothesis, or its seed."""
    found = (ROOT / "tests").rglob("test_*.py")
    words = "hypothesis import", "mark.hypothesis"
    return sorted(str(path.relative_to(ROOT)) for path in found if any(word in path.read_text() for word in words))


def explore(seed: int, examples: str, paths: list[str]) -> int:
    """Run one round, and return the exit status of pytest."""
    command = [sys.executable, "-m", "pytest", "-n", "2", "-m", "hypothesis", "-p", "no:randomly"]
    command += ["--hypothesis-profile=fuzz", f"--hypothesis-seed={seed}", *paths]
    command += ["--timeout=3600"]  # for all examples of a test together, also on a busy machine
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "FUZZ_EXAMPLES": examples}, check=False).returncode


def main() -> int:
    """Run rounds until one finds something or all are done."""
    parser = argparse.ArgumentParser(description="Random exploration with hypothesis.")
    parser.add_argument(
        "--seed", type=int, default=None, help="seed of the first round; the next ones count on from it"
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--examples", type=int, default=300, help="examples for each test")
    parser.add_argument("paths", nargs="*", help="test modules; all that use hypothesis if none is given")
    options = parser.parse_args()
    first = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    paths = options.paths or modules()
    for number in range(options.rounds):
        seed = first + number
        print(f"Round {number + 1} of {options.rounds}, seed {seed}:", flush=True)
        if explore(seed, str(options.examples), paths):
            print(f"Found something. To run this round again: make fuzz SEED={seed} ROUNDS=1")
            return 1
    print("Nothing found.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
