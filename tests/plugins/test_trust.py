"""Files of a project are loaded only with the content that the user trusts."""

import importlib
import importlib.util
import os
import py_compile
import sys

import pytest

from hookline.plugins import PluginManager
from hookline.plugins.errors import LoadError, PluginError, UntrustedFileError
from hookline.plugins.files import importable, load_file
from hookline.plugins.trust import TrustedFiles, check_file, digest, only_trusted, trust_named


@pytest.fixture
def project(tmp_path):
    """A folder with a file that imports a module, each of which says that it ran."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "rules.py").write_text("import module_of_rules\nran = module_of_rules.text\n")
    (folder / "module_of_rules.py").write_text("text = 'as trusted'\n")
    yield folder
    sys.modules.pop("module_of_rules", None)


@pytest.fixture
def trusting(project):
    """Trust files of the project as they are now."""

    def make(*names, named=()):
        known = {(project / name).resolve(): digest((project / name).read_bytes()) for name in names}
        return only_trusted(TrustedFiles([project], lambda path, seen: known.get(path) == seen, named))

    return make


def test_trusted_files_are_loaded_with_the_modules_they_import(project, trusting):
    with trusting("rules.py", "module_of_rules.py"):
        assert load_file(project / "rules.py")[0].ran == "as trusted"


@pytest.mark.parametrize("trusted", [(), ("module_of_rules.py",), ("rules.py",)])
def test_a_file_that_is_not_trusted_does_not_run(project, trusting, trusted):
    with trusting(*trusted), pytest.raises((UntrustedFileError, LoadError), match="is not trusted, or has changed"):
        load_file(project / "rules.py")
    assert "module_of_rules" not in sys.modules


@pytest.mark.parametrize("name", ["rules.py", "module_of_rules.py"])
def test_a_file_that_has_changed_does_not_run(project, trusting, name):
    block = trusting("rules.py", "module_of_rules.py")
    (project / name).write_text("text = ran = 'changed'\n")
    with block, pytest.raises((UntrustedFileError, LoadError), match=f"{name} is not trusted, or has changed"):
        load_file(project / "rules.py")


def test_code_that_tries_an_optional_import_does_not_hide_the_refusal(project, trusting):
    (project / "rules.py").write_text("try:\n    import module_of_rules\nexcept ImportError:\n    pass\n")
    with trusting("rules.py"), pytest.raises(LoadError, match=r"module_of_rules\.py is not trusted"):
        load_file(project / "rules.py")


def test_forged_bytecode_does_not_run_in_place_of_the_source(project, trusting):
    helper, forged = project / "module_of_rules.py", project / "forged.py"
    forged.write_text("text = 'forged    '\n")  # as long as the source, so that Python takes it for its bytecode
    times = helper.stat()
    os.utime(forged, ns=(times.st_atime_ns, times.st_mtime_ns))
    cached = importlib.util.cache_from_source(str(helper))
    py_compile.compile(str(forged), cached, dfile=str(helper))
    with importable(project):
        assert importlib.import_module("module_of_rules").text.strip() == "forged"  # Python itself is deceived
    del sys.modules["module_of_rules"]
    with trusting("rules.py", "module_of_rules.py"):
        assert load_file(project / "rules.py")[0].ran == "as trusted"


def test_a_link_that_leads_out_of_the_project_needs_trust(project, trusting, tmp_path):
    outside = tmp_path / "outside.py"
    outside.write_text("text = 'from outside'\n")
    (project / "module_of_rules.py").unlink()
    (project / "module_of_rules.py").symlink_to(outside)
    with trusting("rules.py"), pytest.raises(LoadError, match=r"outside\.py is not trusted"):
        load_file(project / "rules.py")
    with trusting("rules.py", "module_of_rules.py"):
        assert load_file(project / "rules.py")[0].ran == "from outside"


def test_bytecode_without_source_needs_trust(project, trusting):
    py_compile.compile(str(project / "module_of_rules.py"), str(project / "module_of_rules.pyc"))
    (project / "module_of_rules.py").unlink()
    with trusting("rules.py"), pytest.raises(LoadError, match=r"module_of_rules\.pyc is not trusted"):
        load_file(project / "rules.py")
    with trusting("rules.py", "module_of_rules.pyc"):
        assert load_file(project / "rules.py")[0].ran == "as trusted"


def test_files_that_the_user_named_need_no_trust(project, trusting):
    with trusting(named=[project]):
        assert load_file(project / "rules.py")[0].ran == "as trusted"
    del sys.modules["module_of_rules"]
    (project / "rules.py").write_text("import module_of_rules as h\nran = h.text\n")
    with trusting():
        trust_named(project / "rules.py", project / "module_of_rules.py")
        assert load_file(project / "rules.py")[0].ran == "as trusted"


def test_installed_packages_and_other_folders_need_no_trust(tmp_path, trusting):
    other = tmp_path / "elsewhere.py"
    other.write_text("import colorsys\nfrom msgspec import json\nran = colorsys.ONE_THIRD < 1\n")
    with trusting():
        sys.modules.pop("colorsys", None)
        assert load_file(other)[0].ran


def test_after_the_block_the_import_system_is_restored(project, trusting):
    before = list(sys.meta_path)
    with trusting():
        assert len(sys.meta_path) == len(before) + 1
    assert sys.meta_path == before
    assert load_file(project / "rules.py")[0].ran == "as trusted"


def test_a_plugin_runs_only_with_the_trusted_files(project, trusting):
    folder = project / "plugins" / "loud"
    folder.mkdir(parents=True)
    (folder / "plugin.toml").write_text('id = "loud"\nversion = "1.0"\napi = "1"\nhooks = ["rules.py:rule"]\n')
    (folder / "rules.py").write_text(
        "from hookline import BEFORE_TOOL, guard\nfrom . import more\n"
        "@guard(BEFORE_TOOL)\ndef rule(ctx, request):\n    return None\n"
    )
    (folder / "more.py").write_text("x = 1\n")
    files = [f"plugins/loud/{name}" for name in ("plugin.toml", "rules.py", "more.py")]
    for missing in files:
        manager = PluginManager(folder=project / "plugins", installed=False)
        with trusting(*set(files) - {missing}), pytest.raises(PluginError, match=f"{missing} is not trusted"):
            manager.activate("loud")
    manager = PluginManager(folder=project / "plugins", installed=False)
    with trusting(*files):
        assert manager.activate("loud").name == "loud"
        (folder / "more.py").write_text("x = 2\n")
        with pytest.raises(PluginError, match=r"more\.py is not trusted, or has changed"):
            manager.reload("loud")
        assert [plugin.name for plugin in manager.active] == ["loud"]  # the old version
        manager.close()


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
@pytest.mark.parametrize("place", ["rules.py", "."])
def test_a_file_that_others_could_have_written_does_not_run_even_without_a_project(project, place):
    (project / place).chmod(0o777)
    with pytest.raises(UntrustedFileError, match="every user may write to it"):
        load_file(project / "rules.py")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_in_a_project_all_folders_up_to_its_root_are_checked(project, trusting):
    inner = project / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "code.py").write_text("x = 1\n")
    project.chmod(0o777)
    check_file(inner / "code.py", b"x = 1\n")
    with trusting("a/b/code.py"), pytest.raises(UntrustedFileError, match="every user may write to it"):
        check_file(inner / "code.py", b"x = 1\n")
