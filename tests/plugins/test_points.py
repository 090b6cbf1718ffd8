"""Points of plugins exist only while the plugin is on."""

import pytest

from hookline import BEFORE_TOOL, HookRegistry, RegistrationError
from hookline._kernel.points import TABLE
from hookline.payloads import Frozen
from hookline.plugins import Plugin, PluginManager
from hookline.plugins.plugin import capture_points, declare_points, withdraw_points
from hookline.points import POINTS, Point, resolve

CODE = """
from hookline import observer
from hookline.payloads import Frozen
from hookline.points import Point
class Sale(Frozen, frozen=True):
    amount: int = 0
SALE = Point("acme_sale", Sale, model="observe", names={"Acme": "AcmeSold"})
seen = []
@observer("acme_sale")
def count(ctx, sale): seen.append(sale.amount)
"""
MANIFEST = 'points = ["sales.py:SALE"]\nhooks = ["sales.py:count"]\n'


async def test_a_point_of_a_plugin_exists_while_the_plugin_is_on(write, tmp_path):
    write("sales", MANIFEST, sales=CODE)
    registry = HookRegistry()
    manager = PluginManager(registry, folder=tmp_path / "plugins", installed=False)
    assert "acme_sale" not in POINTS
    plugin = manager.activate("sales")
    assert resolve("AcmeSold") is plugin.points[0]
    await registry.fire("acme_sale", {"amount": 3})
    (hook,) = plugin.hooks
    assert hook.fn.__globals__["seen"] == [3]
    manager.deactivate("sales")
    for name in ("acme_sale", "AcmeSold"):
        with pytest.raises(RegistrationError, match="unknown point"):
            resolve(name)


def test_two_plugins_may_share_a_point_of_one_shape(write, tmp_path):
    for id in ("one", "two"):
        write(id, MANIFEST, sales=CODE)
    manager = PluginManager(folder=tmp_path / "plugins", installed=False)
    manager.activate_all(["one", "two"])
    manager.deactivate("one")
    assert "acme_sale" in POINTS
    manager.deactivate("two")
    assert "acme_sale" not in POINTS


def test_a_second_point_of_the_same_name_and_another_shape_is_rejected(write, tmp_path):
    write("one", MANIFEST, sales=CODE)
    write("two", MANIFEST, sales=CODE.replace("class Sale", "class Gift").replace("Sale,", "Gift,"))
    manager = PluginManager(folder=tmp_path / "plugins", installed=False)
    assert "already declared with another payload" in manager.activate_all(["one", "two"])["two"]
    assert POINTS["acme_sale"].payload.__name__ == "Sale"
    manager.close()


def test_a_reload_may_change_the_shape_of_a_point(write, tmp_path):
    folder = write("one", MANIFEST, sales=CODE)
    manager = PluginManager(folder=tmp_path / "plugins", installed=False)
    manager.activate("one")
    (folder / "sales.py").write_text(CODE.replace("class Sale", "class Gift").replace("Sale,", "Gift,"))
    manager.reload("one")
    assert POINTS["acme_sale"].payload.__name__ == "Gift"
    (folder / "sales.py").write_text(CODE + "1 / 0\n")
    with pytest.raises(RegistrationError, match="ZeroDivisionError"):
        manager.reload("one")
    assert POINTS["acme_sale"].payload.__name__ == "Gift"
    manager.close()


def test_a_plugin_cannot_redefine_an_existing_point(write, tmp_path):
    before = dict(POINTS)
    code = CODE.replace('Point("acme_sale"', 'Point("BEFORE_TOOL"').replace('observer("acme_sale")', "observer(SALE)")
    write("thief", MANIFEST, sales=code)
    manager = PluginManager(folder=tmp_path / "plugins", installed=False)
    assert "belongs to point before_tool" in manager.activate_all(["thief"])["thief"]
    with capture_points() as found:
        same = Point("before_tool", BEFORE_TOOL.payload, verbs=BEFORE_TOOL.verbs, tool=True)
    assert (found, POINTS["before_tool"]) == ([same], BEFORE_TOOL)
    with pytest.raises(RegistrationError, match="already exists outside of plugins"):
        declare_points([same], object())
    assert all(POINTS[name] is point for name, point in before.items())


def test_several_points_are_declared_together_or_not_at_all():
    with capture_points() as points:
        Point("acme_one", Frozen)
        Point("acme_two", Frozen, names={"x": "before_tool_two"})
    with capture_points() as other:
        Point("acme_three", Frozen, names={"x": "before_tool_two"})
    declare_points(points, "me")
    with pytest.raises(RegistrationError, match="belongs to point acme_two"):
        declare_points([*points, *other], "you")
    withdraw_points(points, "me")
    assert not {"acme_one", "acme_two", "acme_three"} & POINTS.keys()


def test_a_point_that_the_program_declared_itself_stays(scripted_agent):
    with capture_points() as points:
        Point("acme_mine", Frozen)
    TABLE["acme_mine"] = points[0]
    try:
        agent = scripted_agent([], plugins=[Plugin("p", points=points)])
        agent.unplug("p")
        assert POINTS["acme_mine"] is points[0]
    finally:
        del TABLE["acme_mine"]
