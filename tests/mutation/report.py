"""Print the score of a part and its surviving mutants, from the results of ``run.py`` in ``.mutants``.

python tests/mutation/report.py kernel               # a table per module, then each survivor and its change
python tests/mutation/report.py kernel results dispatch
"""

import sys
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from run import ROOT, SOURCES, enter

KILLED = ("killed", "timeout", "segfault")


class Mutant(NamedTuple):
    name: str
    module: str
    function: str
    status: str

    @property
    def change(self) -> list[str]:
        """Return the removed and the added lines."""
        from mutmut.mutation.diff_apply import get_diff_for_mutant

        diff = get_diff_for_mutant(self.name).splitlines()
        return [line for line in diff if line[:1] in "+-" and line[:3] not in ("+++", "---")]


def mutants(part: str) -> Iterator[Mutant]:
    """Yield every mutant of a part with its result."""
    from mutmut.mutation.data import SourceFileMutationData
    from mutmut.stats import status_by_exit_code

    for path in sorted((ROOT / SOURCES[part]).glob("*.py")):
        data = SourceFileMutationData(path=path.relative_to(ROOT))
        data.load()
        for name, code in data.exit_code_by_key.items():
            function = name.rpartition(".")[2].rpartition("__mutmut_")[0].removeprefix("x_").removeprefix("xǁ")
            yield Mutant(name, path.stem, function.replace("ǁ", "."), status_by_exit_code[code])


def show(part: str, modules: list[str]) -> None:
    """Print the table, then the survivors."""
    found = [mutant for mutant in mutants(part) if mutant.module in modules]
    print("\n| module | mutants | killed | by timeout | survived | not run | score |\n|---|---|---|---|---|---|---|")
    for module in [*modules, "all"]:
        tally = Counter(m.status for m in found if module in ("all", m.module))
        if total := tally.total():
            killed, survived = sum(tally[status] for status in KILLED), tally["survived"] + tally["no tests"]
            rest, score = total - killed - survived, killed / max(1, killed + survived)
            print(f"| {module} | {total} | {killed} | {tally['timeout']} | {survived} | {rest} | {score:.1%} |")
    for mutant in found:
        if mutant.status not in (*KILLED, "not checked"):
            print(f"\n{mutant.module}.{mutant.function} ({mutant.status}; {mutant.name})", *mutant.change, sep="\n  ")


if __name__ == "__main__":
    part = sys.argv[1]
    enter(part)
    show(part, sys.argv[2:] or sorted(path.stem for path in (ROOT / SOURCES[part]).glob("*.py")))
