"""A spending limit in a configuration file: runs, ``hookline spending`` and ``hookline stats``."""

import json
from getpass import getuser

import pytest

USER = f"{getuser()}@terminal"
HOOK = '{ use = "SpendingLimit", args = { tokens = 300, max_reply_tokens = 100, per = "PER" } }'


@pytest.fixture
def hookline(hookline):
    """Run the program; its exit code and output."""

    def run(*args):
        done = hookline(*args)
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.fixture
def configure(folder, script):
    def write(per="user", more=""):
        model = script("Here you are.", "Again.")
        (folder / "hookline.toml").write_text(
            f'model = "{model}"\nhooks = [{HOOK.replace("PER", per)}]\ndefault_tools = false\n{more}'
        )

    return write


def accounts(hookline, *options):
    code, out, _ = hookline("spending", "--json", *options)
    assert code == 0
    return {each["subject"]: each for each in json.loads(out)}


def spend_all(hookline, *options):
    """Run until the limit is reached; the output of the last run."""
    for _ in range(20):
        code, _, err = hookline("run", "Help.", *options)
        if code:
            return code, err
    raise AssertionError("never reached")


def test_the_user_of_the_terminal_is_stopped_at_the_limit_and_can_be_reset(hookline, configure):
    configure()
    code, err = spend_all(hookline)
    assert code == 3
    assert f"Spending limit of user {USER} reached" in " ".join(err.split())
    found = accounts(hookline)[USER]
    assert (found["account"], found["token_limit"], found["reserved"]) == ("user 1d", 300, {"usd": 0.0, "tokens": 0})
    assert found["tokens_left"] == 300 - found["spent"]["tokens"] < 130
    _, out, _ = hookline("stats")
    assert "Spending limits" in out
    assert USER in out
    code, out, err = hookline("spending", USER, "--reset")
    assert (code, f"reset 1 account of {USER}" in err, "300 tokens" in out) == (0, True, True)
    assert hookline("run", "Help.")[0] == 0


def test_metadata_says_who_the_user_is(hookline, configure):
    configure()
    assert hookline("run", "Help.", "--metadata", "user=ann")[0] == 0
    assert list(accounts(hookline)) == list(accounts(hookline, "ann")) == ["ann"]
    assert accounts(hookline, "ben") == accounts(hookline, "--account", "other") == {}


def test_a_durable_run_counts_too(hookline, configure):
    configure("agent")
    assert hookline("run", "Help.", "--durable", "--quiet")[0] == 0
    assert accounts(hookline)["hookline"]["calls"] == 1


def test_the_file_of_the_setting_is_used_by_all_commands(hookline, configure, folder):
    configure(more='spending_file = "spent.db"\n')
    assert hookline("run", "Help.")[0] == 0
    assert (folder / "spent.db").exists()
    assert list(accounts(hookline)) == [USER]
    assert accounts(hookline, "--spending-file", "other.db") == {}


def test_a_store_that_a_hook_names_is_shown_too(hookline, configure, folder):
    configure()
    text = (folder / "hookline.toml").read_text().replace("tokens = 300", 'tokens = 300, store = "own.db"')
    (folder / "hookline.toml").write_text(text)
    assert hookline("run", "Help.")[0] == 0
    assert list(accounts(hookline)) == [USER]


def test_mistakes_are_explained(hookline, configure, folder):
    assert hookline("spending", "--spending-file", "own.db")[1] == (
        "Nothing has been spent under a limit in this window in own.db.\n"
    )
    code, _, err = hookline("spending", "--reset")
    assert (code, "name the user, session or agent to reset" in err) == (2, True)
    configure("caller")
    code, _, err = hookline("run", "Help.")
    assert code == 2
    assert "per must be 'user', 'session', 'agent' or a function" in " ".join(err.split())
