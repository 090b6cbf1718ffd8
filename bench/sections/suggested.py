"""Section: rules that are proposed from recorded runs, and the policies of tau2-bench as rules."""

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from environments import Environment
from figures import prose, table
from lab import Lab
from section import Section

SUITES = ("workspace", "banking", "slack", "travel")
SETUPS = {
    "nothing": "nothing",
    "names": "a list of tool names",
    "5, 1%": 'proposed, `at_most="1%"`',
    "5, 10%": 'proposed, `"10%"`',
    "5, 10%, person": "the same, with a person",
    "5, 100%": 'proposed, `"100%"`',
    "2, 1%": '`support=2, at_most="1%"`',
    "2, 10%": '`support=2`, `"10%"`',
    "2, 10%, person": "the same, with a person",
    "2, 100%": '`support=2`, `"100%"`',
}
RULES = {"hand": "rules by hand", "1%": "proposed", "10%": 'proposed, `at_most="10%"`', "both": "by hand, and 10 %"}
WHEEL = "inspect-evals==0.26.0"


def measure(lab: Lab) -> dict[str, Any]:
    """Propose rules from records, and judge them."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "download", "--no-deps", "-d", folder]
        subprocess.run([*pip, WHEEL], check=True)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            wheel.extractall(folder, [name for name in wheel.namelist() if "/tau2/data/domains/" in name])
        domains = Path(folder, "inspect_evals", "tau2", "data", "domains")
        tau2 = lab.script("suggested", "tau2/measure.py", str(domains))
    return {
        "speed": lab.probe("probes.suggest:speed", moments=1_000_000),
        "tau2": tau2,
        "agentdojo": lab.script("suggested", "agentdojo/suggested.py", ",".join(SUITES)),
    }


def render(data: Any) -> str:
    """Return the text and the tables."""
    speed = data["speed"]
    return "".join(
        (
            prose(
                f"`hookline suggest` learned from {speed['moments'] / 1e6:.1f} million recorded moments with "
                f"{speed['calls']:,} calls of tools, and judged {speed['rules']} candidates by the later ones, in "
                f"{speed['seconds']:.0f} s ({speed['cpu']:.0f} s of CPU in one process); memory peaked at "
                f"{speed['peak MB']:.0f} MB. Each candidate is judged by its own compiled condition."
            ),
            _agentdojo(data["agentdojo"]),
            "\n",
            _tau2(data["tau2"]),
        )
    )


def _agentdojo(data: Any) -> str:
    return "".join(
        (
            prose(
                "**AgentDojo**, with the model and the checks of AgentDojo above. Each user task is judged once: "
                "the tasks of a suite are in four parts, by their number modulo 4. The rules for one part are "
                "proposed from records of the tasks of the other three parts, without attacks, and are then ordinary"
                " hooks that ask. *Asked* is the share of the calls of user tasks without attack; attacks are those "
                "through a call. Nobody answers, or a person approves exactly the calls that the user's task needs. "
                "These are 12 to 30 short tasks to learn from, and not a month of work; `support=2` makes a rule of "
                "what occurred twice, instead of five times. The split and the settings were chosen before the first"
                " measurement; of one part of banking, figures were seen while the measurement was written."
            ),
            *_records(data),
            prose(
                "On so little, the rules are worth little: a list of tool names stops more. It is made from all "
                "records of the other parts, while rules are learned from half of them and chosen by a fifth; and "
                "where a list from that half interrupts more than a quarter of the calls by which rules are chosen "
                "(73 % in a part of workspace), it is left out. In workspace and travel, the rules stop next to "
                "nothing."
            ),
            "By suite, with the default settings, and with `support=2`:\n\n",
            _suites(data["plain"]),
        )
    )


def _records(data: Any) -> Iterator[str]:
    """Yield a table for each way in which records are written, or one if that makes no difference."""
    tables = {kind: _setups(data[kind]) for kind in ("redacted", "plain")}
    if tables["redacted"] == tables["plain"]:
        words = "Records as they are written by default; with `redact=False`, the figures are the same:"
        yield f"{words}\n\n{tables['plain']}\n"
        return
    yield f"Records as they are written by default:\n\n{tables['redacted']}\n"
    yield f"With `redact=False`:\n\n{tables['plain']}\n"


def _setups(suites: Any) -> str:
    rows = []
    for setup, words in SETUPS.items():
        whole = _sum(found[setup] for found in suites.values())
        name = f"{setup.removesuffix(', person')}, rules"
        rules = sum(found.get(name, 0) for found in suites.values())
        rows.append(
            [
                words,
                f"{rules / (4 * len(suites)):.0f}" if rules else "",
                share(whole["questions"], whole["calls"]),
                share(whole["solved"], whole["tasks"]),
                share(whole["by_call_succeeded"], whole["by_call"]),
                share(whole["solved_attacked"], whole["pairs"]),
            ]
        )
    return table(["", "rules", "asked", "solved", "attacks succeed", "solved under attack"], rows)


def _suites(suites: Any) -> str:
    rows = []
    for suite, found in suites.items():
        nothing, few, many = found["nothing"], found["5, 1%"], found["2, 10%"]
        rows.append(
            [
                suite,
                share(nothing["by_call_succeeded"], nothing["by_call"]),
                *(
                    text
                    for each in (few, many)
                    for text in (
                        share(each["by_call_succeeded"], each["by_call"]),
                        share(each["questions"], each["calls"]),
                    )
                ),
            ]
        )
    head = ["suite", "attacks, nothing", "attacks, default", "asked", 'attacks, `support=2`, `"10%"`', "asked"]
    return table(head, rows)


def _sum(found: Any) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in found:
        for name, value in each.items():
            total[name] = total.get(name, 0) + value
    return total


def _tau2(data: Any) -> str:
    tables = []
    for domain, found in data.items():
        kinds = sorted(found["hand"]["forbidden"], key=lambda kind: (-_stopped(found["hand"], kind), kind))
        rows: list[list[str]] = [
            ["rules", *(str(found["rules"].get(setup, "")) for setup in RULES)],
            [
                "expected calls interrupted",
                *(share(found[setup]["interrupted"], found[setup]["calls"]) for setup in RULES),
            ],
            ["tasks interrupted", *(share(found[setup]["runs_interrupted"], found[setup]["runs"]) for setup in RULES)],
        ]
        for kind in kinds:
            rows.append([f"stopped: {kind}", *(_share_of(found[setup], kind) for setup in RULES)])
        rows.append(["stopped: all", *(_share_of(found[setup]) for setup in RULES)])
        tables.append(f"{domain.capitalize()}, {found['tasks']} tasks of the split `test`:\n\n")
        tables.append(table(["", *RULES.values()], rows) + "\n")
    return (
        "".join(
            (
                prose(
                    "**tau2-bench** (data of `inspect-evals` 0.26.0). The policies of airline and retail are written"
                    " as rules by hand ([airline.toml](tau2/airline.toml), [retail.toml](tau2/retail.toml)), from "
                    "the policy and the tasks of the split `train`; the proposed rules are learned from the expected"
                    " calls of `train`. Judged once, on `test`: by the expected calls of each task, with the lookups"
                    " that the policy demands, and by calls that it forbids: an expected one with one change. What "
                    "only results say, such as whose order it is, rules cannot compare with the arguments of a call,"
                    " and these changes pass. Not measured are telecom, where most calls are those of the user's "
                    "phone, banking, whose policy is a knowledge base of documents, and mock."
                ),
                *tables,
            )
        ).rstrip("\n")
        + "\n"
    )


def _stopped(found: Any, kind: str) -> float:
    each = found["forbidden"][kind]
    return float(each["stopped"] / each["of"])


def _share_of(found: Any, kind: str = "") -> str:
    kinds: Mapping[str, Any] = found["forbidden"]
    chosen = [kinds[kind]] if kind else list(kinds.values())
    return share(sum(each["stopped"] for each in chosen), sum(each["of"] for each in chosen))


def share(part: int, whole: int) -> str:
    """Return a part of a whole as text."""
    return f"{100 * part / whole:.1f} % ({part}/{whole})" if whole else "none"


SECTION = Section(
    "suggested",
    "Rules proposed from recorded runs",
    measure,
    render,
    modules=("cel_expr_python",),
    environment=Environment("suggested", ("agentdojo==0.1.35", "-e", ".[rules]")),
)
