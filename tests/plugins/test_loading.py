"""Loading the code of plugins: each in its own package, removed when the plugin is off."""

import os
import sys

import pytest

from hookline.plugins import PluginError, load_plugin


def modules(prefix="_hookline_plugin_"):
    return {name for name in sys.modules if name.startswith(prefix)}


@pytest.fixture(autouse=True)
def nothing_loaded(monkeypatch):
    """Ignore modules that other tests have left in this process."""
    for name in {*modules(), "rules", "words"} & sys.modules.keys():
        monkeypatch.delitem(sys.modules, name)


ONE = "from hookline import observer\n@observer('on_run_end')\ndef one(ctx, result): ...\n"


@pytest.mark.parametrize(
    ("manifest", "files", "says"),
    [
        ('hooks = ["gone.py:x"]', {}, "there is no file .*gone.py"),
        ('hooks = ["rules.py:x"]', {"rules": ONE}, "has no 'x'"),
        ('hooks = ["rules.py:on"]', {"rules": ONE}, "Did you mean 'one'?"),
        ('hooks = ["../rules.py:one"]', {"rules": ONE}, "outside the plugin's folder"),
        ('hooks = ["/etc/rules.py:one"]', {"rules": ONE}, "outside the plugin's folder"),
        ('hooks = ["rules"]', {"rules": ONE}, "write FILE.py:NAME or module:NAME"),
        ('hooks = ["rules.py"]', {"rules": "x = 1"}, "rules.py defines no hooks"),
        ('points = ["rules.py"]', {"rules": ONE}, "names a whole file"),
        ('points = ["rules.py:one"]', {"rules": ONE}, "DecoratedFunction, not a Point"),
        ('hooks = ["rules.py:x"]', {"rules": "x = 3"}, "is not a hook"),
        ('tools = ["rules.py:x"]', {"rules": "x = 3"}, "is not a tool"),
        ('activate = "rules.py:x"', {"rules": "x = 3"}, "is a int, not a function"),
        ('channels = { c = "rules.py:x" }', {"rules": "x = 3"}, "must be a class or a function"),
        ('hooks = ["rules.py:one"]', {"rules": "def f(:"}, r"rules\.py, line 1: SyntaxError"),
        ('hooks = ["rules.py:one"]', {"rules": "\n\nraise ValueError('no')"}, r"rules\.py, line 3: ValueError: no"),
        ('hooks = ["rules.py:one"]', {"rules": "import sys; sys.exit(3)"}, "SystemExit: 3"),
        ('hooks = ["rules.py:one"]', {"rules": "import nowhere_at_all"}, "No module named 'nowhere_at_all'$"),
        ('hooks = ["rules.py:one"]', {"rules": "import beside", "beside": ""}, "write 'from . import beside'"),
        ('hooks = ["nowhere_at_all:x"]', {}, "No module named 'nowhere_at_all'"),
        ('hooks = ["rules.py:Made"]', {"rules": "class Made:\n def __init__(self): 1 / 0"}, "cannot be made: ZeroDiv"),
        ('hooks = ["rules.py:one"]', {"__init__": "raise OSError('first')", "rules": ONE}, "OSError: first"),
        (
            'hooks = ["rules.py:one"]',
            {"rules": f"{ONE}from hookline import ToolCallRequest as P, points\npoints.Point('p_one', P)"},
            "declares the point p_one",
        ),
    ],
)
def test_code_that_cannot_be_used_gives_an_error_and_leaves_no_modules(write, manifest, files, says):
    folder = write("p", manifest, **files)
    with pytest.raises(PluginError, match=says) as caught:
        load_plugin(folder)
    assert str(caught.value).startswith("plugin 'p': ")
    assert modules() == set()


def test_modules_of_a_plugin_import_each_other_and_plugins_share_no_modules(write):
    plugins = []
    for id in ("a", "b"):
        code = "from .words import WORD\n" + ONE + "one.word = WORD\n"
        plugins.append(load_plugin(write(id, 'hooks = ["rules.py"]', rules=code, words=f"WORD = '{id}'")))
    assert [plugin.hooks[0].word for plugin in plugins] == ["a", "b"]
    assert "words" not in sys.modules
    assert "rules" not in sys.modules


def test_a_whole_file_adds_the_hooks_that_it_defines_but_not_imported_ones(write):
    rules = "from .more import other\nfrom hookline import observer\n" + ONE
    more = ONE.replace("one", "other")
    plugin = load_plugin(write("p", 'hooks = ["rules.py"]', rules=rules, more=more))
    assert [hook.name for hook in plugin.hooks] == ["one"]


def test_a_folder_inside_a_plugin_is_a_package_of_it(write):
    folder = write("p", 'hooks = ["deep.rules:one", "deep/rules.py:one"]')
    (folder / "deep").mkdir()
    (folder / "deep" / "rules.py").write_text(ONE)
    first, second = load_plugin(folder).hooks
    assert first is second


def test_no_bytecode_is_written_to_the_folder_or_read_from_it(write, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    folder = write("p", 'hooks = ["rules.py:one"]', rules=ONE)
    state = (folder / "rules.py").stat()
    load_plugin(folder)
    (folder / "rules.py").write_text(ONE.replace("'on_run_end'", "'after_tool'"))  # as long, and as old
    os.utime(folder / "rules.py", ns=(state.st_atime_ns, state.st_mtime_ns))
    assert [str(point) for point in load_plugin(folder).hooks[0].points] == ["after_tool"]
    assert not list(folder.rglob("*.pyc"))


def test_modules_are_removed_when_the_plugin_is_off_and_back_when_it_is_on(write, scripted_agent):
    plugin = load_plugin(write())
    agent = scripted_agent([], plugins=[plugin])
    (top,) = {name.partition(".")[0] for name in modules()}
    assert modules() == {top, f"{top}.rules", f"{top}.tools"}
    agent.unplug("loud")
    assert modules() == set()
    agent.plug(plugin)
    assert f"{top}.rules" in modules()


def test_a_package_that_the_program_imported_stays(install, scripted_agent):
    install("acme = acme_pkg", acme_pkg____init__="", acme_pkg__plugin__toml=PACKAGED, acme_pkg__rules=ONE)
    import acme_pkg  # type: ignore[import-not-found] # noqa: F401, I001

    agent = scripted_agent([], plugins=["acme"])
    assert {"acme_pkg", "acme_pkg.rules"} <= modules("acme_pkg")
    agent.unplug("acme")
    assert modules("acme_pkg") == {"acme_pkg"}


PACKAGED = 'id = "acme"\nversion = "3.0"\napi = "1"\nhooks = ["rules.py:one"]\n'


def test_an_installed_package_with_a_manifest_is_a_plugin(install, scripted_agent):
    install("acme = acme_pkg", acme_pkg____init__="", acme_pkg__plugin__toml=PACKAGED, acme_pkg__rules=ONE)
    agent = scripted_agent(["hi"], plugins=["acme"])
    assert [(plugin.name, plugin.version) for plugin in agent.plugins] == [("acme", "3.0")]
    assert [hook.name for hook in agent.hooks.at("on_run_end")] == ["one"]
    agent.unplug("acme")
    assert modules("acme_pkg") == set()
