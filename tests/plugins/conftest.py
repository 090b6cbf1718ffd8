"""Fixtures: plugins in folders and in installed packages."""

import importlib
import sys
import textwrap

import pytest

from hookline.points import POINTS

RULES = """
from hookline import BEFORE_TOOL, HookResult, guard

@guard(BEFORE_TOOL, tools="shout")
def quiet(ctx, request):
    return HookResult.block("be quiet") if request.arguments.get("text") == "boo" else None
"""
TOOLS = """
from hookline import tool

@tool(effects=[])
def shout(text: str) -> str:
    '''Shout.'''
    return text.upper()
"""
MANIFEST = 'id = "{id}"\nversion = "1.0"\napi = "1"\n'


@pytest.fixture(autouse=True)
def nothing_is_left():
    """After each test, the points and modules of plugins are gone."""
    points = dict(POINTS)
    yield
    for name in [name for name in sys.modules if name.startswith("_hookline_plugin_")]:
        del sys.modules[name]
    assert dict(POINTS) == points


@pytest.fixture
def write(tmp_path):
    """Write a plugin into ``plugins/ID``: its manifest, and files by their names without ``.py``."""

    def put(id="loud", manifest='hooks = ["rules.py:quiet"]\ntools = ["tools.py:shout"]\n', /, **files):
        folder = tmp_path / "plugins" / id
        folder.mkdir(parents=True, exist_ok=True)
        text = manifest if "version =" in manifest else MANIFEST.format(id=id) + manifest
        (folder / "plugin.toml").write_text(text)
        if not files and "rules.py" in manifest:
            files = {"rules": RULES, "tools": TOOLS}
        for name, code in files.items():
            (folder / f"{name}.py").write_text(textwrap.dedent(code))
        return folder

    return put


@pytest.fixture
def install(tmp_path, monkeypatch):
    """A package on ``sys.path`` whose metadata offers plugins."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    tops = set()

    def put(entry_points, version="2.0", /, **files):
        info = site / "acme_plugins-2.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: acme-plugins\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[hookline.plugins]\n{entry_points}\n")
        for name, text in files.items():
            path = site / name.replace("__", "/").replace("/toml", ".toml")
            path = path if path.suffix else path.with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
            tops.add(path.relative_to(site).parts[0].removesuffix(".py"))
        importlib.invalidate_caches()
        return site

    yield put
    for name in [name for name in sys.modules if name.partition(".")[0] in tops]:
        del sys.modules[name]
