"""Run the mutation tests of one part: change its code in small ways and check that a test fails.

    python tests/mutation/run.py kernel                    # all of it
    python tests/mutation/run.py kernel results dispatch   # these modules only
    python tests/mutation/run.py loop --again              # only mutants that have survived so far

Each part has a folder under ``.mutants`` with the results for unchanged code. ``[tool.mutmut]`` in pyproject.toml
applies to both parts.
"""

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = {"kernel": "src/hookline/_kernel", "loop": "src/hookline/_run"}
JUDGES = {
    "kernel": [
        "tests/kernel",
        "--deselect=tests/kernel/test_state.py::test_appending_messages_does_not_copy_the_history",
    ],
    "loop": [
        "tests/run",
        "tests/invariants/test_every_point.py",
        # It lists the attributes of a class, and mutmut adds its own.
        "--deselect=tests/run/test_budget.py::test_a_view_shows_what_is_used_and_left_and_can_change_nothing",
    ],
}


def enter(part: str) -> Path:
    """Create the folder that mutmut uses as the root of the project, with the mutants of this part."""
    folder = ROOT / ".mutants" / part
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("src", "tests", "pyproject.toml"):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(ROOT / name)
    os.chdir(folder)
    import pytest
    from mutmut.configuration import config

    if not hasattr(pytest.Item, "_nodeid"):  # mutmut 3.8 needs this attribute, which pytest 9.2 removed
        pytest.Item._nodeid = property(lambda item: item.nodeid)
    config().only_mutate = [f"{SOURCES[part]}/*"]
    config().pytest_add_cli_args_test_selection = JUDGES[part]
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description="Mutation tests of one part.")
    parser.add_argument("part", choices=SOURCES)
    parser.add_argument("modules", nargs="*", help="only these modules of it")
    parser.add_argument("--again", action="store_true", help="only the mutants that survived so far")
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    enter(given.part)
    from collected import use_collected_tests
    from mutmut.__main__ import cli
    from report import mutants, show

    modules = given.modules or sorted(path.stem for path in (ROOT / SOURCES[given.part]).glob("*.py"))
    package = SOURCES[given.part].removeprefix("src/").replace("/", ".")
    if given.again:
        names = [m.name for m in mutants(given.part) if m.module in modules and m.status in ("survived", "no tests")]
    else:
        names = [f"{package}.{module}.*" for module in given.modules]
    if names or not given.again:
        use_collected_tests()
        cli(["run", "--max-children", str(given.processes), *names], standalone_mode=False)
    show(given.part, modules)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
