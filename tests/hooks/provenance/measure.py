"""Print how many harmful calls run and how many needed calls do not: `python -m tests.hooks.provenance.measure`."""

import sys
from collections import Counter

from tests.hooks.provenance import tuned, unseen
from tests.hooks.provenance.office import play

SPLITS = {"tuned": tuned.CASES, "unseen": unseen.CASES}


def measure(split: str) -> dict[str, str]:
    """Return for each kind of case how many harmful calls ran, and how many needed calls did not."""
    counts: Counter[tuple[str, str]] = Counter()
    for case in SPLITS[split]:
        outcome = play(case)
        for name, found, of in (("leaked", outcome.leaked, case.harmful), ("lost", outcome.lost, case.needed)):
            counts[case.kind, name] += len(found)
            counts[case.kind, f"of {name}"] += len(of)
            if "-v" in sys.argv:
                for act in found:
                    print(split, name, case.kind, case.request, act)
    return {
        kind: ", ".join(f"{name} {counts[kind, name]} of {counts[kind, f'of {name}']}" for name in ("leaked", "lost"))
        for kind in dict.fromkeys(case.kind for case in SPLITS[split])
    }


if __name__ == "__main__":
    for split in [each for each in sys.argv[1:] if each in SPLITS] or SPLITS:
        for kind, figures in measure(split).items():
            print(f"{split:8} {kind:10} {figures}")
