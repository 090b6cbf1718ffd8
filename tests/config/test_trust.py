"""Which files a configuration uses, found without running them, and the record of the trusted ones."""

import os
import stat
import subprocess
import sys

import pytest

from hookline.config.errors import ConfigError
from hookline.config.sources import load
from hookline.config.trust import (
    TrustStore,
    check_trust,
    commands_with_variables,
    other_programs,
    project_files,
    trust_variable,
)
from hookline.plugins.trust import digest

CANARY = "import pathlib\npathlib.Path(__file__).with_name('canary').touch()\n"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The folder of a project, which is the working folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def write(home):
    """Write files of the project by name; each would leave a canary if it ran."""

    def make(**files):
        for name, text in files.items():
            path = home / name.replace("__", "/").replace("_py", ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(CANARY + text)

    return make


@pytest.fixture
def store(tmp_path):
    return TrustStore(tmp_path / "data" / "trust.json")


def names(home, config):
    """The files that a configuration uses, relative to the project."""
    return {os.path.relpath(path, home) for path in project_files(config).all()}


@pytest.mark.parametrize(
    "settings",
    [
        'hooks = ["rules.py"]',
        'hooks = ["rules.py:one"]',
        'hooks = [{ use = "rules.py:one" }]',
        'hooks = ["rules:one"]',
        'tools = ["rules.py"]',
        'tools = ["rules:one"]',
        'deps = "rules.py:make"',
        'deps = "rules:make"',
        'channels = ["rules.py:One"]',
        'channels = [{ use = "rules:One" }]',
        'mcp = ["python rules.py --port 1"]',
        'mcp = ["python -m rules"]',
        'trusted_mcp = ["python rules.py"]',
        '[server]\nrules = ["rules.py"]',
        '[server]\nrules = ["rules.py:one"]',
    ],
)
def test_every_file_whose_code_runs_is_found_with_the_modules_it_imports_and_none_is_run(home, write, settings):
    write(
        rules_py="import helper\ndef later():\n    from deep.down import thing\n",
        helper_py="try:\n    import optional\nexcept ImportError:\n    pass\n",
        optional_py="import json, msgspec, hookline\n",
        deep____init___py="",
        deep__down_py="from . import beside\n",
        deep__beside_py="",
        deep__dynamic_py="",
        unrelated_py="",
    )
    (home / "deep" / "__init__.py").write_text(CANARY)
    (home / "hookline.toml").write_text(settings)
    found = names(home, load(folder=home, env={}))
    modules = {f"deep/{name}.py" for name in ("__init__", "down", "beside", "dynamic")}
    assert found >= {"rules.py", "helper.py", "optional.py", "deep/down.py", "deep/__init__.py", "deep/beside.py"}
    assert found <= {"rules.py", "helper.py", "optional.py", *modules}
    assert list(home.rglob("canary")) == []


def test_a_package_counts_with_all_its_modules_because_it_may_load_them_dynamically(home, write):
    write(pack__rules_py="", pack__other_py="", pack__sub__deep_py="")
    (home / "pack" / "__init__.py").write_text(CANARY)
    (home / "hookline.toml").write_text('hooks = ["pack.rules:one"]')
    found = names(home, load(folder=home, env={}))
    assert found == {"pack/__init__.py", "pack/rules.py", "pack/other.py", "pack/sub/deep.py"}
    assert list(home.rglob("canary")) == []


def test_the_code_and_manifests_of_enabled_plugins_count(home, write):
    for name in ("on", "off"):
        write(**{f"plugins__{name}__rules_py": "", f"plugins__{name}__sub__more_py": ""})
        (home / "plugins" / name / "plugin.toml").write_text(f'id = "{name}"\nversion = "1"\napi = "1"\n')
    (home / "hookline.toml").write_text('plugins = ["on"]')
    found = names(home, load(folder=home, env={}))
    assert found == {"plugins/on/plugin.toml", "plugins/on/rules.py", "plugins/on/sub/more.py"}


def test_a_module_behind_a_link_out_of_the_project_is_found(home, write, tmp_path):
    write(rules_py="import helper\n")
    (tmp_path / "outside.py").write_text(CANARY)
    (home / "helper.py").symlink_to(tmp_path / "outside.py")
    (home / "hookline.toml").write_text('hooks = ["rules.py"]')
    assert names(home, load(folder=home, env={})) == {"rules.py", "../outside.py"}


@pytest.mark.parametrize("text", ["(" * 100_000, "x = " + "-" * 200_000 + "1", "\0", "def f(:\n"])
def test_a_file_that_cannot_be_parsed_is_found_and_stops_nothing(home, text):
    (home / "rules.py").write_text(text)
    (home / "hookline.toml").write_text('hooks = ["rules.py"]')
    assert names(home, load(folder=home, env={})) == {"rules.py"}


@pytest.mark.parametrize(
    "settings",
    [
        f'hooks = ["{"x" * 5000}.py"]',
        f'mcp = ["{"x" * 5000}", "python {"x" * 5000}.py", "unclosed \\"quote"]',
        'hooks = ["cycle.py", "folder.py", "no\\u0000name.py"]',
        'hooks = ["cycle:one", "..:x", "a..b:x", ":x", "no\\u0000name:x"]',
        'plugins = ["./cycle.py", "./missing", "./folder.py"]',
    ],
)
def test_references_that_lead_nowhere_are_no_files_and_no_error(home, settings):
    (home / "cycle.py").symlink_to(home / "cycle.py")
    (home / "folder.py").mkdir()
    (home / "hookline.toml").write_text(settings)
    assert names(home, load(folder=home, env={})) == set()


def test_data_that_a_server_gets_as_an_argument_is_not_code(home):
    (home / "notes.db").write_text("")
    (home / "server.sh").write_text("")
    (home / "other.js").write_text("")
    commands = ["./server.sh notes.db", "sh -c 'node other.js notes.db > notes.db'", "npx . notes.db"]
    (home / "hookline.toml").write_text(f"mcp = {commands}")
    assert names(home, load(folder=home, env={})) == {"server.sh", "other.js"}


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("sh start notes.db", {"start"}),
        ("bash -x start notes.db", {"start"}),
        ("env PYTHONPATH=lib python -m server", {"lib/server.py", "lib/json.py"}),
        ("uv run --directory lib server.py", {"lib/server.py", "lib/json.py"}),
        ("python lib/server.py", {"lib/server.py", "lib/json.py"}),
    ],
)
def test_scripts_that_a_server_runs_from_another_folder_or_without_a_suffix_are_code(home, write, command, found):
    write(lib__server_py="import json\n", lib__json_py="", lib__other_py="")
    (home / "start").write_text("echo\n")
    (home / "notes.db").write_text("")
    (home / "hookline.toml").write_text(f'mcp = ["{command}"]')
    assert names(home, load(folder=home, env={})) == found


@pytest.mark.parametrize("new", ["json.py", "optional.py", "msgspec/__init__.py"])
def test_a_new_module_that_a_server_would_import_is_asked_about(home, write, store, new):
    write(server_py="import json, msgspec\ntry:\n    import optional\nexcept ImportError:\n    pass\n")
    (home / "hookline.toml").write_text('mcp = ["python server.py"]')
    config = load(folder=home, env={})
    path = config.file.resolve()
    store.trust(path, check_trust(store, path, config.digest, project_files(config)).digests)
    assert check_trust(store, path, config.digest, project_files(config)).passed
    (home / new).parent.mkdir(exist_ok=True)
    (home / new).write_text(CANARY)
    assert not check_trust(store, path, config.digest, project_files(config)).passed


def test_files_named_on_the_command_line_are_the_users_own_choice(home, write):
    write(mine_py="", theirs_py="")
    (home / "hookline.toml").write_text('hooks = ["theirs.py"]')
    config = load(folder=home, env={"HOOKLINE_HOOKS": "mine.py"})
    files = project_files(config)
    assert [path.name for path in files.direct] == ["theirs.py"]
    assert [path.name for path in files.named] == ["mine.py"]


# The store.


def test_a_file_is_trusted_with_its_content_and_a_change_is_noticed(home, write, store):
    write(rules_py="import helper\n", helper_py="")
    (home / "hookline.toml").write_text('hooks = ["rules.py"]')

    def check():
        config = load(folder=home, env={})
        return check_trust(store, config.file, config.digest, project_files(config))

    def states():
        return {path.name: state for path, state in check().states.items()}

    assert states() == {"hookline.toml": "new", "rules.py": "new", "helper.py": "new"}
    first = check()
    store.trust(first.path, first.digests)
    assert check().passed
    for name in ("hookline.toml", "rules.py", "helper.py"):
        text = (home / name).read_text()
        (home / name).write_text(f"{text}\n# changed")
        assert states() == {**dict.fromkeys(("hookline.toml", "rules.py", "helper.py"), "trusted"), name: "changed"}
        (home / name).write_text(text)
    assert check().passed
    assert store.revoke(first.path)
    assert not store.revoke(first.path)
    assert set(states().values()) == {"new"}


def test_the_same_content_at_another_path_is_not_trusted(home, store):
    store.trust(home / "a.py", {home / "a.py": digest(b"x")})
    assert store.is_trusted(home / "a.py", digest(b"x"))
    assert not store.is_trusted(home / "b.py", digest(b"x"))


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_only_the_user_can_read_and_write_the_record(store, home):
    store.trust(home / "a.py", {home / "a.py": "0"})
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700
    store.path.chmod(0o666)
    with pytest.raises(ConfigError, match="every user may write to it"):
        TrustStore(store.path).records()


def test_a_damaged_record_is_an_error_and_trusts_nothing(store, home):
    store.trust(home / "a.py", {home / "a.py": "0"})
    store.path.write_text("{")
    with pytest.raises(ConfigError, match=r"trust\.json cannot be read: .* Remove it"):
        store.is_trusted(home / "a.py", "0")


def test_processes_that_trust_files_at_once_lose_no_record(store, home):
    code = (
        "import sys, pathlib\nfrom hookline.config.trust import TrustStore\n"
        "path = pathlib.Path(sys.argv[2])\nTrustStore(pathlib.Path(sys.argv[1])).trust(path, {path: '0'})\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", code, store.path, home / f"{n}.py"]) for n in range(4)]
    assert [process.wait() for process in running] == [0] * 4
    assert sorted(store.records()) == [str(home / f"{n}.py") for n in range(4)]


@pytest.mark.parametrize(("text", "on"), [("1", True), ("true", True), ("YES", True), ("0", False), ("", False)])
def test_the_variable_says_whether_to_trust(text, on):
    assert trust_variable({"HOOKLINE_TRUST": text}) is on


def test_another_value_of_the_variable_is_an_error():
    with pytest.raises(ConfigError, match="HOOKLINE_TRUST: expected 1 or 0; got 'maybe'"):
        trust_variable({"HOOKLINE_TRUST": "maybe"})


SERVERS = {
    "Makefile": "include more.mk\n\nserve: build\n\t@node server.js --port 1\n",
    "more.mk": "build:\n\tsh build.sh\n",
    "build.sh": "#!/bin/sh\npython3 tool.py\n",
    "tool.py": "import helper\n",
    "helper.py": "",
    "package.json": '{"scripts": {"start": "node server.js"}, "main": "main.mjs"}',
    "main.mjs": "",
    "server.js": 'const list = require("./lib/list");\nimport other from "../outside.js"\nrequire("fs")\n',
    "lib/list.js": 'import { deep } from "./deep.mjs";\n',
    "lib/deep.mjs": "",
    "lib/unused.js": "",
    "pyproject.toml": '[project]\nname = "x"\n',
    "uv.lock": "",
    "notes.db": "",
}
NODE = {"package.json", "main.mjs", "server.js", "lib/list.js", "lib/deep.mjs"}
MADE = {"Makefile", "more.mk", "build.sh", "tool.py", "helper.py"}


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("make serve", MADE | NODE),
        ("make -C . serve", MADE | NODE),
        ("npm start", NODE),
        ("npm run start --silent", NODE),
        ("npx . notes.db", NODE),
        ("node server.js notes.db", NODE),
        ("env DEBUG=1 node server.js", NODE),
        ("sh -c 'npm start'", NODE),
        ("python -m tool", {"tool.py", "helper.py"}),
        ("uvx some-server --db notes.db", {"pyproject.toml", "uv.lock"}),
        ("uv run tool.py", {"tool.py", "helper.py", "pyproject.toml", "uv.lock"}),
    ],
)
def test_the_files_that_decide_what_a_server_runs_are_in_the_question_and_in_its_digest(home, store, command, found):
    for name, text in SERVERS.items():
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(text)
    (home / "hookline.toml").write_text(f'mcp = ["{command}"]')
    config = load(folder=home, env={})
    assert names(home, config) == found
    path = config.file.resolve()
    for name in found:
        store.trust(path, check_trust(store, path, config.digest, project_files(config)).digests)
        assert check_trust(store, path, config.digest, project_files(config)).passed
        was = (home / name).read_text()
        (home / name).write_text('{"scripts": {"start": "evil"}}' if name == "package.json" else f"{was}\n# changed\n")
        assert not check_trust(store, path, config.digest, project_files(config)).passed, name
        (home / name).write_text(was)


def test_programs_that_may_load_more_than_is_listed_are_named(home):
    (home / "server.sh").write_text("")
    commands = [
        "npm start",
        "env A=1 make serve",
        "python -m tool",
        "./server.sh",
        "/usr/bin/uvx x",
        "https://x.org/mcp",
    ]
    assert other_programs(commands, home) == ["npm", "make", "uvx"]


def test_recipes_that_name_each_other_end(home):
    (home / "a.sh").write_text("sh b.sh\n" + "".join(f"echo {number}\n" for number in range(5000)))
    (home / "b.sh").write_text("sh a.sh\n")
    (home / "hookline.toml").write_text('mcp = ["sh a.sh"]')
    assert names(home, load(folder=home, env={})) == {"a.sh", "b.sh"}


@pytest.mark.parametrize(
    ("command", "files", "changed"),
    [
        ("node server", {"server.js": ""}, "server.js"),
        ("node lib", {"lib/index.js": ""}, "lib/index.js"),
        ("node lib", {"lib/package.json": '{"main": "m.js"}', "lib/m.js": ""}, "lib/m.js"),
        ("node --import=./pre.mjs server", {"server.js": "", "pre.mjs": ""}, "pre.mjs"),
        ("node --import=./pre.mjs server", {"server.js": "", "pre.mjs": ""}, "server.js"),
        ("node -r./pre.js server.js", {"server.js": "", "pre.js": ""}, "pre.js"),
        ("node --require ./pre server.js", {"server.js": "", "pre.js": ""}, "pre.js"),
        ("node --env-file=.e server.js", {"server.js": "", ".e": "A=1"}, ".e"),
        ("make serve", {"Makefile": "include mk/*.mk\n", "mk/a.mk": "A=1\n"}, "mk/a.mk"),
        ("make serve", {"Makefile": "-include mk/*.mk\n", "mk/a.mk": "A=1\n"}, "mk/b.mk"),
        ("make serve", {"Makefile": "include .values\n", ".values": "include more\n", "more": "A=1\n"}, "more"),
        ("make serve", {"Makefile": "serve:\n\t$(MAKE) -C sub\n", "sub/Makefile": "a:\n"}, "sub/Makefile"),
        ("make -Csub", {"sub/Makefile": "serve:\n\tsh run.sh\n", "sub/run.sh": ""}, "sub/run.sh"),
        ("make -frules serve", {"rules": "serve:\n\tsh run.sh\n", "run.sh": ""}, "run.sh"),
        ("npm --prefix sub run s", {"sub/package.json": '{"scripts": {"s": "node s.js"}}', "sub/s.js": ""}, "sub/s.js"),
        ("npm --prefix=sub run s", {"sub/package.json": '{"scripts": {"s": "node s.js"}}', "sub/s.js": ""}, "sub/s.js"),
        ("npm start", {"package.json": "{}", "server.js": ""}, "server.js"),
        ("node a.js", {"a.js": "", "package.json": '{"imports": {"#x": {"node": "./b.js"}}}', "b.js": ""}, "b.js"),
        ("npx .", {"package.json": '{"bin": {"x": "./cli"}}', "cli": ""}, "cli"),
        ("bash run.sh", {"run.sh": "source lib/env\n", "lib/env": "A=1\n"}, "lib/env"),
        ("sh run.sh", {"run.sh": "if true; then . ./env; fi\n", "env": "A=1\n"}, "env"),
        ("sh run.sh", {"run.sh": "f() { A=1 . ./env; }; f\n", "env": "A=1\n"}, "env"),
        ("sh -c '. ./env; python s.py'", {"env": "A=1\n", "s.py": ""}, "env"),
        ("sh env", {"env": ". other\n", "other": "A=1\n"}, "other"),
        ("sh -c 'sh < program'", {"program": ""}, "program"),
        ("bash -o pipefail run", {"run": ""}, "run"),
        ("bash --rcfile rc -i", {"rc": ""}, "rc"),
        ("env BASH_ENV=first bash run.sh", {"run.sh": "", "first": ""}, "first"),
        ("env PYTHONPATH=lib python s.py", {"lib/sitecustomize.py": "", "s.py": ""}, "lib/sitecustomize.py"),
        ("env PYTHONPATH=. python s.py", {"sitecustomize.py": "", "s.py": ""}, "sitecustomize.py"),
        ("env PYTHONPATH=lib: python s.py", {"lib/a.py": "", "usercustomize.py": "", "s.py": ""}, "usercustomize.py"),
        ("./run", {"run": "#!/usr/bin/env python3\nimport part\n", "part.py": ""}, "part.py"),
        ("python run", {"run": "import part\n", "part.py": ""}, "part.py"),
        ("node ./run", {"run": "require('./part.js')\n", "part.js": ""}, "part.js"),
        ("python app", {"app/__main__.py": "import part\n", "app/part.py": ""}, "app/part.py"),
        ("make serve", {"Makefile": "V := $(shell sh version.sh)\n", "version.sh": ""}, "version.sh"),
        ("make serve", {"Makefile": "serve:\n\tpython \\\n\t  tool\n", "tool": ""}, "tool"),
    ],
)
def test_a_file_that_a_server_reaches_by_an_option_an_include_or_another_folder_is_asked_about(
    home, store, command, files, changed
):
    for name, text in files.items():
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(text)
    (home / "hookline.toml").write_text(f'mcp = ["{command}"]')
    config = load(folder=home, env={})
    path = config.file.resolve()
    store.trust(path, check_trust(store, path, config.digest, project_files(config)).digests)
    assert check_trust(store, path, config.digest, project_files(config)).passed
    (home / changed).write_text("A=2\n")
    assert not check_trust(store, path, config.digest, project_files(config)).passed


def test_commands_that_name_files_by_variables_are_named(home):
    recipe = "S=server.py\ninclude $(D)/a.mk\nserve:\n\tpython $(S)\n\t$(MAKE) -C sub\n\techo $(S)\n\tcd $D && ls\n"
    (home / "Makefile").write_text(recipe)
    assert commands_with_variables(["make serve", "sh -c 'node $X'", "python a.py"], home) == [
        "sh -c 'node $X'",
        "include $(D)/a.mk",
        "python $(S)",
        "cd $D && ls",
    ]
