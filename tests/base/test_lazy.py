"""Public modules list their names once, in a stub, and import each when it is first used."""

import ast
import importlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import hookline
from hookline._base.lazy import exports
from tests.cases import each_case

SOURCE = Path(hookline.__file__).parent
STUBS = sorted(SOURCE.rglob("*.pyi"))


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A package with a stub that imports from sibling, child and other modules of the package."""
    inner = tmp_path / "shop" / "till"
    inner.mkdir(parents=True)
    (tmp_path / "shop" / "__init__.py").write_text("__version__ = '1'\n")
    (tmp_path / "shop" / "prices.py").write_text("PRICE = 3\n")
    (inner / "__init__.py").write_text(
        "from hookline._base.lazy import attach\n\n__getattr__, __dir__ = attach(__name__)\n"
    )
    (inner / "__init__.pyi").write_text(
        "from ..prices import PRICE as PRICE\n"
        "from .drawer import (\n    Drawer as Drawer,\n    fill as fill,\n)\n"
        "from .. import __version__ as __version__\n"
    )
    (inner / "drawer.py").write_text("class Drawer: ...\n\ndef fill(): return 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == "shop"]:
        del sys.modules[name]


def test_a_name_is_imported_when_it_is_first_used(shop):
    till = importlib.import_module("shop.till")
    assert "shop.till.drawer" not in sys.modules
    assert till.fill() == 7
    assert "shop.till.drawer" in sys.modules
    assert vars(till)["fill"] is till.fill  # stored, so the next access is an ordinary one
    assert (till.PRICE, till.__version__) == (3, "1")


def test_all_and_dir_have_the_names_of_the_stub(shop):
    till = importlib.import_module("shop.till")
    assert till.__all__ == ["Drawer", "PRICE", "fill"]
    assert {"Drawer", "PRICE", "fill"} <= set(dir(till))
    space = {}
    exec("from shop.till import *", space)
    assert space["fill"]() == 7


def test_a_name_that_is_not_listed_is_not_there(shop):
    till = importlib.import_module("shop.till")
    with pytest.raises(AttributeError, match=r"module 'shop\.till' has no attribute 'nothing'"):
        till.nothing  # noqa: B018
    with pytest.raises(ImportError, match="nothing"):
        exec("from shop.till import nothing")


def test_a_name_that_another_public_module_has_says_where_it_is():
    with pytest.raises(
        ImportError, match=r"it is in hookline\.records\. Write: from hookline\.records import read_runs"
    ):
        exec("from hookline import read_runs")
    with pytest.raises(ImportError, match=r"Write: from hookline\.stores import RunStore"):
        exec("from hookline.hooks import RunStore")
    with pytest.raises(
        AttributeError, match=r"module 'hookline' has no attribute 'read_runs': it is in hookline\.records"
    ):
        hookline.read_runs  # noqa: B018
    assert not hasattr(hookline, "read_runs")
    with pytest.raises(ImportError, match=r"^cannot import name 'nothing' from 'hookline'"):
        exec("from hookline import nothing")


def test_it_works_from_an_archive(shop, tmp_path):
    archive = tmp_path / "all.zip"
    with zipfile.ZipFile(archive, "w") as made:
        for path in (shop / "shop").rglob("*.py*"):
            made.write(path, path.relative_to(shop))
    code = f"import sys; sys.path.insert(0, {str(archive)!r}); from shop.till import fill; print(fill())"
    env = {"PYTHONPATH": str(SOURCE.parent)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd="/", check=False)
    assert done.stdout == "7\n", done.stderr


@each_case("stub", STUBS)
def test_stubs_contain_only_names_that_type_checkers_re_export(stub):
    for line in ast.parse(stub.read_text()).body:
        assert isinstance(line, ast.ImportFrom), ast.unparse(line)
        assert [(alias.name, alias.asname) for alias in line.names] == [(alias.name,) * 2 for alias in line.names]


def test_the_root_takes_its_names_from_the_public_modules():
    homes = {home for name, (home, _) in exports("hookline").items() if name != "__version__"}
    assert all(home.startswith("hookline.") and "._" not in home for home in homes)
