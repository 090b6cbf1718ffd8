"""Rules are learned from earlier runs, and judged by later ones."""

import random
import tomllib

import pytest

from hookline.backtest import backtest
from hookline.hooks.rules import load_rules
from hookline.suggest import SuggestError, propose

from . import shop


def rule(proposal, name):
    return next(each for each in (*proposal.rules, *proposal.left_out) if each.name == name)


def conditions(proposal):
    return {each.name: each.rule.when for each in proposal.rules}


@pytest.fixture(scope="module")
def month(tmp_path_factory):
    return shop.month(tmp_path_factory.mktemp("shop") / "a.moments")


@pytest.fixture(scope="module")
def attacks(tmp_path_factory):
    return shop.attacked(tmp_path_factory.mktemp("attacks") / "b.moments")


def test_what_occurs_becomes_rules(month):
    found = conditions(propose(month))
    assert found["all.tools"] == "!(call.tool in ['fetch', 'get_order', 'read_file', 'refund', 'send_mail'])"
    assert found["refund.reason.values"].endswith("in ['damaged', 'late', 'wrong size'])")
    assert found["refund.amount.range"] == (
        "has(call.arguments.amount) && (call.arguments.amount < 0 || call.arguments.amount > 100)"
    )
    assert found["fetch.url.hosts"] == "has(call.arguments.url) && !(host(call.arguments.url) in ['api.example.com'])"
    assert found["send_mail.arguments"] == "!call.arguments.all(name, name in ['text', 'to'])"
    assert found["send_mail.refund.only-after"] == "!called('refund')"
    assert found["send_mail.calls-a-run"] == "count('send_mail') >= 1"
    assert found["send_mail.calls-a-day"] == "count('send_mail', duration('24h')) >= 2"
    assert "earlier.tool == 'get_order'" in found["refund.order.same-value"]


def test_paths_become_folders_and_mail_addresses_domains_when_their_values_are_many(tmp_path):
    chance = random.Random(3)
    names = [f"{chance.randint(1, 9999)}" for _ in range(40)]
    runs = [
        [("read", {"path": f"/srv/{'ab'[i % 2]}/{n}.md", "to": [f"u{n}@example.com"]}), ("list", {"path": f"src/{n}"})]
        for i, n in enumerate(names)
    ]
    found = conditions(propose(shop.write(tmp_path / "a.moments", runs)))
    assert found["read.path.folders"] == (
        "has(call.arguments.path) && !within(call.arguments.path, '/srv/a') && !within(call.arguments.path, '/srv/b')"
    )
    assert found["read.to.domains"] == (
        "has(call.arguments.to) && call.arguments.to.exists(item, !item.endsWith('@example.com'))"
    )
    assert found["list.path.inside"].startswith("has(call.arguments.path) && (call.arguments.path.startsWith('/')")


def test_the_file_can_be_loaded_its_examples_hold_and_every_rule_is_in_shadow_mode(month, attacks, tmp_path):
    proposal = propose(month, attacks=attacks)
    file = tmp_path / "rules.toml"
    file.write_text(proposal.toml)
    loaded = load_rules(file)
    assert [each.name for each in loaded.rules] == [each.name for each in proposal.rules]
    assert all(each.data.shadow for each in loaded.rules)
    assert list(loaded.failed_examples()) == []
    assert sum(len(each.data.examples) for each in loaded.rules) > len(loaded.rules)


def test_a_call_of_later_runs_that_a_rule_interrupts_is_counted_and_shown(tmp_path):
    chance = random.Random(1)
    runs = [shop.usual(chance) for _ in range(60)]
    runs[58][3][1]["reason"] = "birthday"
    proposal = propose(shop.write(tmp_path / "a.moments", runs))
    found = rule(proposal, "refund.reason.values")
    assert (found.judged.interrupted.hits, found.judged.interrupted.total) == (1, 18)
    assert found.chosen.interrupted.hits == 0
    assert [(one.run_id, one.n, one.shown) for one in found.exceptions] == [("run_0058", 3, '"birthday"')]
    assert proposal.judged.interrupted.hits == 1
    assert proposal.judged.by_day == pytest.approx(1 / 8.5, abs=0.01)
    assert '# 1 exception:\n#   run_0058 #3  "birthday"\n' in proposal.toml


def test_attacks_are_stopped_by_rules_and_less_by_a_list_of_names(month, attacks):
    proposal = propose(month, attacks=attacks)
    assert proposal.chosen.attacks + proposal.later.attacks == len(shop.ATTACKS)
    assert proposal.judged.stopped.hits > proposal.allow_list.stopped.hits
    assert proposal.judged.interrupted.hits == 0


def test_records_of_attacks_without_labels_are_attacks_as_a_whole(month, tmp_path):
    bad = [[("refund", {"order": f"#{n}", "amount": 5000 + n, "reason": "late"})] for n in range(6)]
    proposal = propose(month, attacks=shop.write(tmp_path / "bad.moments", bad, id="bad_{}"))
    assert proposal.judged.stopped.hits == proposal.judged.stopped.total == proposal.later.attacks > 0


def test_bad_and_refused_calls_are_not_learned_from(tmp_path):
    chance = random.Random(1)
    runs = [shop.usual(chance) for _ in range(60)]
    for number in range(20):
        runs[number][3][1]["reason"] = "bribe"
    proposal = propose(shop.write(tmp_path / "a.moments", runs, bad=[(number, 3) for number in range(20)]))
    assert "bribe" not in rule(proposal, "refund.reason.values").rule.when
    assert proposal.chosen.attacks == 20


def test_values_that_were_replaced_in_the_records_are_in_no_rule(tmp_path):
    runs = [[("mail", {"to": f"{'ab'[n % 2]}***@example.com", "card": "****1111"})] for n in range(40)]
    proposal = propose(shop.write(tmp_path / "a.moments", runs, inexact="redacted"))
    assert "***" not in "".join(each.rule.when for each in (*proposal.rules, *proposal.left_out))
    assert "mail.to.domains" in conditions(proposal)


def test_a_rule_that_interrupts_often_is_left_out_with_the_reason(tmp_path):
    runs = [[("go", {"mode": "fast" if n < 30 else "slow", "by": "me"})] for n in range(60)]
    proposal = propose(shop.write(tmp_path / "a.moments", runs))
    assert rule(proposal, "go.mode.values").left_out == "it interrupts 100 % of the calls of its tool"
    assert "go.mode.values" not in proposal.toml


def test_a_rule_that_says_less_than_another_is_left_out(month):
    assert rule(propose(month), "send_mail.to.domains").left_out == "send_mail.to.values says more"


def noisy(path):
    """Runs in which some later calls have new values."""
    chance = random.Random(5)
    runs = [shop.usual(chance) for _ in range(100)]
    for number in (52, 60, 66):
        runs[number][3][1]["reason"] = f"other {number}"
    runs[55][4][1]["to"] = "zoe@example.com"
    return shop.write(path / "a.moments", runs)


def test_the_limit_decides_how_many_rules_there_are(tmp_path):
    records = noisy(tmp_path)
    none, some, every = (propose(records, at_most=limit) for limit in ("0%", "1%", 100))
    names = [{each.name for each in proposal.rules} for proposal in (none, some, every)]
    assert names[0] < names[1] < names[2]
    assert "refund.reason.values" in names[2] - names[1]
    assert (
        rule(some, "refund.reason.values").left_out == "with it, the rules would interrupt more than 1 % of the calls"
    )
    assert every.at_most == "100 calls a day"
    assert [point.rules for point in every.curve] == list(range(1, len(every.curve) + 1))
    assert every.curve[len(every.rules) - 1].judged == every.judged


def test_the_rules_interrupt_in_a_backtest_what_the_proposal_says(tmp_path):
    """There, the real dispatcher asks all rules of the file, also those about earlier calls."""
    records = noisy(tmp_path)
    proposal = propose(records, at_most="100%")
    file = tmp_path / "rules.toml"
    file.write_text(proposal.toml.replace("shadow = true\n", ""))
    report = backtest(load_rules(file), records)
    whole = proposal.curve[len(proposal.rules) - 1]
    assert report.total("newly_asked").total == whole.chosen.interrupted.hits + whole.judged.interrupted.hits == 4
    assert {cell.hook for cell in report.cells if cell.kind == "newly_asked"} == {
        each.name for each in proposal.rules if each.exception_count
    }


def test_calls_of_earlier_runs_of_a_conversation_count(tmp_path):
    runs = [[("login", {}), ("pay", {"amount": 5})] if n % 2 == 0 else [("pay", {"amount": 5})] for n in range(40)]
    one = propose(shop.write(tmp_path / "a.moments", runs, together=2))
    others = propose(shop.write(tmp_path / "b.moments", runs))
    assert "pay.login.only-after" in conditions(one)
    assert "pay.login.only-after" not in {each.name for each in (*others.rules, *others.left_out)}


def test_a_boolean_is_not_a_number(tmp_path):
    runs = [[("set", {"level": 1, "on": True})] for _ in range(30)]
    runs[25] = [("set", {"level": True, "on": 1})]
    proposal = propose(shop.write(tmp_path / "a.moments", runs), at_most="100%")
    assert rule(proposal, "set.level.values").exception_count == 1
    assert rule(proposal, "set.on.values").exception_count == 1


def test_records_without_times_have_no_days(tmp_path):
    records = shop.month(tmp_path / "a.moments", start=0.0)
    proposal = propose(records)
    assert proposal.judged.by_day is None
    assert "no times" in " ".join(proposal.notes)
    with pytest.raises(SuggestError, match="share of the calls"):
        propose(records, at_most=3)


def test_too_few_runs_are_an_error(tmp_path):
    with pytest.raises(SuggestError, match="at least 10 runs with calls of tools, and the records contain 9"):
        propose(shop.month(tmp_path / "a.moments", runs=9))


@pytest.mark.parametrize("limit", ["many", "-1", "101%", "nan", ""])
def test_a_limit_that_is_none_is_an_error(month, limit):
    with pytest.raises(SuggestError, match="at_most is a number of interruptions a day"):
        propose(month, at_most=limit)


HOSTILE = [
    'x"\n[[rules]]\nname = "evil"\nwhen = "false"\nthen = "end"\nmessage = "y"',
    "it's \\ \x7f \u202e \ud7ff \U0001f600",
    "'''\"\"\"\r\n# comment",
    "' || true || '",
]


def test_no_value_of_a_record_leaves_its_text_or_its_comment(tmp_path):
    runs = [[("go\n[[rules]]" if n % 2 else "go", {"a b": value, "c": "d\n#"})] for n in range(10) for value in HOSTILE]
    runs[38] = [("go", {"a b": 'new\n[[rules]]\nname = "evil"', "c": "d\n#"})]
    proposal = propose(shop.write(tmp_path / "a.moments", runs), at_most="100%")
    file = tmp_path / "rules.toml"
    file.write_text(proposal.toml)
    assert [each["name"] for each in tomllib.loads(file.read_text())["rules"]] == [each.name for each in proposal.rules]
    assert list(load_rules(file).failed_examples()) == []
    values = rule(proposal, "go.a_b.values")
    assert values.exception_count == 1
    assert proposal.toml.isprintable() or set(filter(lambda c: not c.isprintable(), proposal.toml)) == {"\n"}


def test_the_result_is_the_same_each_time(month, attacks):
    first, second = (propose(month, attacks=attacks).replace(seconds=0.0) for _ in range(2))
    assert first == second
