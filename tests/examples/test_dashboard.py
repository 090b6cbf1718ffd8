"""The Grafana dashboard of examples/fleet asks only for metrics and labels that Hookline exports."""

import json
import re
from pathlib import Path

import pytest

from hookline.hooks import MetricsHook
from hookline.hooks._prometheus import Metrics
from hookline.server.health import HealthApi, Traffic, add_fleet_metrics
from hookline.stores import RunStore
from tests.server.rig import service_at

DASHBOARD = json.loads((Path(__file__).parents[2] / "examples/fleet/grafana.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [(panel["title"], target) for panel in PANELS for target in panel["targets"]]


@pytest.fixture
def exported(tmp_path, monkeypatch):
    """The metrics of a server, with the labels of each."""
    found = {}

    def noting(kind, position, *suffixes, more=()):
        real = getattr(Metrics, kind)

        def make(self, name, *args, **options):
            labels = args[position] if len(args) > position else options.get("labels", ())
            for suffix in suffixes:
                found[name + suffix] = {*labels, *(more if suffix == "_bucket" else ())}
            return real(self, name, *args, **options)

        monkeypatch.setattr(Metrics, kind, make)

    noting("counter", 1, "")
    noting("gauge", 2, "")
    noting("histogram", 1, "_bucket", "_sum", "_count", more=("le",))
    metrics = MetricsHook()
    add_fleet_metrics(metrics, RunStore(":memory:"))
    HealthApi(service_at(tmp_path), lambda: "running", metrics)
    Traffic(metrics)
    return found


def parts(promql, node):
    """Yield all expressions of a query."""
    yield node
    for name in ("lhs", "rhs", "expr", "param", "vector_selector"):
        inner = getattr(node, name, None)
        if isinstance(inner, promql.Expr) or name == "vector_selector" and inner is not None:
            yield from parts(promql, inner)
    for inner in getattr(node, "args", ()):
        yield from parts(promql, inner)


@pytest.mark.parametrize(("title", "target"), QUERIES, ids=[f"{title} {target['refId']}" for title, target in QUERIES])
def test_a_query_is_valid_and_asks_for_metrics_and_labels_that_exist(title, target, exported):
    promql = pytest.importorskip("promql_parser", reason="pip install promql-parser")
    query = promql.parse(target["expr"].replace("$__rate_interval", "5m"))
    nodes = list(parts(promql, query))
    selectors = [node for node in nodes if isinstance(node, promql.VectorSelector)]
    assert selectors
    assert {node.name for node in selectors} <= set(exported)
    known = set.intersection(*(exported[node.name] for node in selectors))
    asked = {matcher.name for node in selectors for matcher in node.matchers.matchers}
    grouped = [node.modifier for node in nodes if isinstance(node, promql.AggregateExpr) and node.modifier is not None]
    asked |= {label for modifier in grouped for label in modifier.labels}
    shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
    assert asked | shown <= known
    assert shown <= asked, "a label that is summed away cannot be shown"


def test_the_dashboard_shows_what_the_guide_says_to_alert_on(exported):
    page = (Path(__file__).parents[2] / "docs/guides/fleet.md").read_text()
    alerts = page.partition("Alert on these:")[2].partition("\n\n## ")[0]
    wanted = {*re.findall(r"hookline_\w+", alerts)}
    assert wanted
    assert wanted <= {*re.findall(r"hookline_\w+", json.dumps(DASHBOARD))}


def test_panels_have_numbers_of_their_own_and_do_not_overlap():
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    taken = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert all(x < 24 for x, _ in cells)
        taken |= cells
