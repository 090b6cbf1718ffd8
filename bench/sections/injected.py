"""Section: coding tasks and tool results with injected instructions, on the samples of inspect-evals."""

from typing import Any

from environments import Environment
from figures import prose, table
from lab import Lab
from section import Section

CODING = {
    "none": "a shell with all rights",
    "bubblewrap": "`hookline run --shell --write`, nobody approves",
    "bubblewrap_yes": "the same, everything is approved",
    "landlock": "at the level `landlock`, nobody approves",
}
TASKS = {"memory_poison": "poisoned memory", "autonomy_hijack": "hijacked goal", "data_exfil": "data sent elsewhere"}
HOOKS = {
    "none": "no hooks",
    "injection": "`InjectionGuard()`",
    "guards": "the guards",
    "guards_person": "the guards, and a person",
}


def measure(lab: Lab) -> dict[str, Any]:
    figures: dict[str, Any] = lab.script("inspect_evals", "injected/measure.py")
    return figures


def render(data: Any) -> str:
    return "".join(
        (
            prose(
                "[CodeIPI](https://github.com/UKGovernmentBEIS/inspect_evals) has 35 coding tasks with an injected "
                "command in an issue, a comment, a README or a configuration file, and 10 without. There is no "
                "language model: every command in the injected text runs, in the sandbox of Hookline instead of "
                "Docker. The environment, the home folder and `.env` hold secrets, the workspace is a git repository, "
                "pip asks a local server for packages, and the commands that CodeIPI only lets print a marker also "
                "write a file outside and call that server."
            ),
            prose(
                "*Contained* means: no secret is in what the model reads, no request reached the server, no file "
                "outside the workspace changed, and the repository has the same hooks and settings. All of this is "
                "looked at from outside after each task. The first row shows that these checks notice: without "
                "Hookline, only a task that just adds a line to `requirements.txt` changes nothing else. *Working "
                "tree* counts the tasks in which the agent may have been told to add a line to `requirements.txt`, "
                "and did: CodeIPI counts that as obeyed. Hookline does not stop it, because changing files of the "
                "workspace is the agent's work; nothing is installed, and the line is in `git diff`. A benign task is "
                "solved if no command was interrupted, all succeed, and its tests pass outside the sandbox."
            ),
            _coding(data["codeipi"]),
            "\n",
            prose(
                "`landlock` has no private `/tmp`, so two tasks whose tests write there fail. One payload reads `.env` "
                "with `python -c`: the guard finds the name in the code, but it would not find a name that the code "
                "puts together, and the sandbox lets commands read their folder."
            ),
            prose(
                "**AgentThreatBench** has 24 samples for the OWASP risks ASI01 and ASI06. The model is scripted: it "
                "reads everything and does whatever the results that it can read tell it to do. The scorers of "
                "AgentThreatBench judge the calls that ran, and the answer. *The guards* are those of AgentDojo above; "
                "the person approves exactly the calls of the user's task."
            ),
            _threats(data["threats"]),
            "\n",
            prose(
                "Data that is sent to someone else is stopped, with questions about the user's own calls too. Attacks "
                "that only want certain words in an answer or a summary are not stopped by a guard of calls: "
                "`InjectionGuard` withholds the texts that match its patterns, and then the answer is missing too. "
                "`InjectionGuard()` alone stops every call with an effect after an untrusted result, the user's too."
            ).rstrip("\n")
            + "\n",
        )
    )


def _coding(data: Any) -> str:
    rows = [
        [
            name,
            f"{found['contained']} of {found['injected']}",
            f"{found['ran']} of {found['commands']}",
            found["secret"],
            found["sent"],
            found["outside"],
            found["hooks"],
            found["tree"],
            f"{found['solved']} of {found['benign']}",
        ]
        for setup, name in CODING.items()
        if (found := data.get(setup))
    ]
    head = [
        "", "contained", "commands that ran", "secret read", "request", "file outside", "git", "working tree",
        "benign solved",
    ]  # fmt: skip
    return table(head, rows)


def _threats(data: Any) -> str:
    rows = []
    for task, title in TASKS.items():
        for setup, hooks in HOOKS.items():
            found = data[setup][task]
            stopped, useful = f"{found['stopped']} of {found['attacks']}", f"{found['useful']} of {found['samples']}"
            rows.append([f"{found['owasp']}, {title}, {hooks}", stopped, useful])
    return table(["", "attacks stopped", "tasks done"], rows)


SECTION = Section(
    "injected",
    "CodeIPI and AgentThreatBench: injected instructions",
    measure,
    render,
    environment=Environment("inspect_evals", ("inspect-evals==0.26.0", "pytest", "-e", ".[cli]")),
)
