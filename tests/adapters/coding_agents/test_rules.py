"""The files that the rules of a session come from."""

import os
import sys
from types import ModuleType

from hookline import HookRegistry
from hookline.adapters.coding_agents.rules import Rules


def test_rules_watch_the_files_that_links_lead_to(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    for name in ("in_linked_folder.py", "behind_link.py"):
        (tmp_path / "real" / name).write_text("")
    (tmp_path / "folder").symlink_to("real")
    (tmp_path / "link.py").symlink_to("real/behind_link.py")
    for name in ("folder/in_linked_folder.py", "link.py"):
        module = ModuleType(name)
        module.__file__ = str(tmp_path / name)
        monkeypatch.setitem(sys.modules, name, module)
    real = os.path.realpath(tmp_path / "real")
    rules = Rules(HookRegistry())
    assert {f"{real}/in_linked_folder.py", f"{real}/behind_link.py"} <= rules.files.keys()
    assert not rules.changed()
    (tmp_path / "real" / "behind_link.py").write_text("# changed")
    assert rules.changed()


def test_rules_do_not_watch_the_installation():
    watched = Rules(HookRegistry()).files
    assert os.path.realpath(__file__) in watched
    assert not watched.keys() & {os.path.realpath(os.__file__), os.path.realpath(sys.modules["hookline"].__file__)}
