"""Who may approve at a server: people whom a proxy authenticates, keys, and a policy."""

import json

import httpx
import pytest

from hookline.config.errors import ConfigError
from hookline.hooks import AuditLogHook
from hookline.server.options import ServerOptions
from hookline.stores.keys import KeyStore

from .console.asking import cleaner, deleted, finished, waiting_call
from .console.rig import console

POLICY = {
    "people": {
        "ann": {"by": ["user:ann@example.org"], "can_approve": [{"tool": "delete", "where": {"path": "tmp/*"}}]},
        "ben": {"by": ["user:ben@example.org"], "can_approve": [{"tool": "*"}]},
        "cleo": {"by": ["user:cleo@example.org"], "can_approve": [{"tool": "delete"}]},
    },
    "four_eyes": [{"tool": "delete", "where": {"path": "etc/*"}}],
}
LOGIN = {"header": "X-Forwarded-Email", "addresses": ["127.0.0.1"], "admins": ["root@example.org"]}


@pytest.fixture(autouse=True)
def nothing_is_deleted_yet():
    deleted.clear()


def serve(folder, **options):
    return console(folder, cleaner(), policy=POLICY, **{"login": LOGIN, **options})


def person(made, name, **headers):
    """A browser behind the proxy that has authenticated a person."""
    given = {"origin": made.url, "sec-fetch-site": "same-origin", "X-Forwarded-Email": f"{name}@example.org", **headers}
    return httpx.AsyncClient(base_url=made.url, headers=given, trust_env=False, timeout=60)


def approval(row):
    return {"decision": "approve", "digest": row.digest}


async def test_a_call_needs_a_person_who_may_approve_it_and_did_not_ask_for_it(tmp_path):
    async with (
        serve(tmp_path) as made,
        person(made, "dan") as dan,
        person(made, "ann") as ann,
        person(made, "ben") as ben,
    ):
        run, row = await waiting_call(made, dan)
        assert (row.owner, row.asked_by) == ("user:dan@example.org", "user:dan@example.org")
        answer = await dan.post(f"/approvals/{row.id}", json=approval(row))
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "may_not_approve")
        assert (await ann.post(f"/approvals/{row.id}", json=approval(row))).status_code == 404  # it is none of hers
        assert (await ann.get("/approvals")).json()["approvals"] == []
        (seen,) = (await ben.get("/approvals")).json()["approvals"]
        assert (seen["needed"], seen["approvers"], seen["asked_by"]) == (1, ["ben", "cleo"], "user:dan@example.org")
        done = (await ben.post(f"/approvals/{row.id}", json=approval(row))).json()
        assert (done["status"], done["by"], done["approvers"]) == ("approved", "user:ben@example.org", [])
        assert (await finished(dan, run))["reply"] == "a.txt is gone"


async def test_two_people_approve_and_the_audit_log_has_their_names_and_every_attempt(tmp_path):
    audit = tmp_path / "audit.jsonl"
    agent = cleaner(AuditLogHook(audit))
    async with (
        console(tmp_path, agent, policy=POLICY, login=LOGIN, audit=audit) as made,
        person(made, "dan") as dan,
        person(made, "ben") as ben,
        person(made, "cleo") as cleo,
    ):
        run, row = await waiting_call(made, dan, "etc/passwd")
        half = (await ben.post(f"/approvals/{row.id}", json=approval(row))).json()
        assert (half["status"], half["needed"], half["approvers"]) == ("pending", 1, ["cleo"])
        assert [each["person"] for each in half["approved_by"]] == ["ben"]
        again = await ben.post(f"/approvals/{row.id}", json=approval(row))
        assert (again.status_code, "already" in again.json()["error"]["message"]) == (403, True)
        assert deleted == []
        await cleo.post(f"/approvals/{row.id}", json=approval(row))
        assert (await finished(dan, run))["reply"] == "etc/passwd is gone"
    records = [json.loads(line) for line in audit.read_text().splitlines()]
    votes = [(each["action"], each["by"]) for each in records if each["type"] == "approval_vote"]
    assert votes == [("approved", "user:ben@example.org"), ("refused", "user:ben@example.org")]
    (decided,) = [each for each in records if each["type"] == "approval"]
    assert decided["by"] == "user:ben@example.org and user:cleo@example.org"
    assert "user:cleo@example.org" in {each["caller"] for each in records if each["type"] == "auth"}


async def test_a_run_that_goes_on_in_another_server_still_needs_both_people(tmp_path):
    async with serve(tmp_path, durable=True) as made, person(made, "dan") as dan, person(made, "ben") as ben:
        run, row = await waiting_call(made, dan, "etc/hosts")
        assert (await ben.post(f"/approvals/{row.id}", json=approval(row))).json()["status"] == "pending"
    async with (
        console(tmp_path, cleaner(), login=LOGIN, durable=True) as made,  # its settings have no policy
        person(made, "dan") as dan,
        person(made, "ben") as ben,
        person(made, "cleo") as cleo,
    ):
        for again in (dan, ben):
            assert (await again.post(f"/approvals/{row.id}", json=approval(row))).status_code == 403
        assert not deleted
        assert (await cleo.post(f"/approvals/{row.id}", json=approval(row))).json()["status"] == "approved"
        assert (await finished(dan, run))["reply"] == "etc/hosts is gone"
    assert deleted == ["etc/hosts"]


async def test_the_console_shows_who_has_approved_and_who_is_still_needed(tmp_path):
    async with (
        serve(tmp_path) as made,
        person(made, "dan") as dan,
        person(made, "ben") as ben,
        person(made, "cleo") as cleo,
    ):
        _, row = await waiting_call(made, dan, "etc/passwd")
        own = (await dan.get("/console/approvals")).text
        assert "Two people must approve it: ben or cleo." in own
        assert "You can deny it, but not approve it" in own
        assert 'value="approve"' not in own
        assert 'value="deny"' in own
        assert 'value="approve"' in (await ben.get("/console/approvals")).text
        form = {**approval(row), "next": "/console/approvals"}
        assert (await ben.post(f"/console/approvals/{row.id}", data=form)).status_code == 303
        shown = (await cleo.get("/console/approvals")).text
        assert "Approved by user:ben@example.org. One more person must approve it: cleo." in shown
        assert 'name="remember"' not in shown  # two people approve a call once
        assert 'value="edit"' not in shown
        assert (await dan.post(f"/console/approvals/{row.id}", data=form)).status_code == 403
        assert (await cleo.post(f"/console/approvals/{row.id}", data=form)).status_code == 303
        assert "by user:ben@example.org and user:cleo@example.org" in (await dan.get("/console/approvals")).text


async def test_a_key_in_the_policy_is_named_by_its_id(tmp_path):
    key, secret = KeyStore(tmp_path / "keys.db").add("robot", ["approve"])
    people = {"robot": {"by": [key.id], "can_approve": [{"tool": "delete"}]}}
    async with console(tmp_path, cleaner(), policy={"people": people}, login=LOGIN) as made, person(made, "dan") as dan:
        run, row = await waiting_call(made, dan)
        async with httpx.AsyncClient(base_url=made.url, headers={"X-Api-Key": secret}, trust_env=False) as robot:
            assert (await robot.post(f"/approvals/{row.id}", json=approval(row))).json()["status"] == "approved"
        assert (await finished(dan, run))["reply"] == "a.txt is gone"


# Login behind a proxy


async def test_the_proxy_names_the_person_and_the_options_give_the_rights(tmp_path):
    async with serve(tmp_path) as made, person(made, "ann") as ann, person(made, "root") as root:
        assert "ann@example.org" in (await ann.get("/")).text
        assert (await ann.get("/console/audit")).status_code == 403
        assert (await root.get("/console/audit")).status_code != 403
        async with httpx.AsyncClient(base_url=made.url, trust_env=False) as nobody:
            assert (await nobody.get("/runs")).status_code == 401  # without the header, a key is needed


async def test_an_identity_header_from_another_address_is_refused_and_audited(tmp_path):
    audit = tmp_path / "audit.jsonl"
    login = {**LOGIN, "addresses": ["192.0.2.1"]}
    async with console(tmp_path, cleaner(AuditLogHook(audit)), policy=POLICY, login=login, audit=audit) as made:
        secret = made.keys.add("k", ["read"])[1]
        async with person(made, "ben") as ben:
            answer = await ben.get("/runs")
            assert (answer.status_code, "not trusted" in answer.json()["error"]["message"]) == (401, True)
            assert (await ben.get("/runs", headers={"X-Api-Key": secret})).status_code == 401
            # What a forwarding header says about the address does not count.
            assert (await ben.get("/runs", headers={"X-Forwarded-For": "192.0.2.1"})).status_code == 401
    denied = [json.loads(line) for line in audit.read_text().splitlines() if '"denied"' in line]
    assert {each["why"] for each in denied} == {"an identity header came from an address that is not trusted"}


@pytest.mark.parametrize(
    "value",
    ["", "a\tb", "x" * 201, b"\xff", b"\xc3(ann", "ann and user:ben@example.org", "ann\u00a0".encode()],
)
async def test_a_header_that_does_not_name_one_person_is_refused(tmp_path, value):
    async with serve(tmp_path) as made, httpx.AsyncClient(base_url=made.url, trust_env=False) as client:
        assert (await client.get("/runs", headers={"X-Forwarded-Email": value})).status_code == 401
        two = [("X-Forwarded-Email", "ann@example.org"), ("X-Forwarded-Email", "ben@example.org")]
        assert (await client.get("/runs", headers=two)).status_code == 401


async def test_another_site_cannot_decide_in_the_name_of_a_person_who_is_logged_in(tmp_path):
    async with serve(tmp_path) as made, person(made, "dan") as dan, person(made, "ben") as ben:
        _, row = await waiting_call(made, dan)
        for site in ("cross-site", "same-site", "none"):
            answer = await ben.post(f"/approvals/{row.id}", json=approval(row), headers={"sec-fetch-site": site})
            assert answer.status_code == 403
        assert made.server.service.approvals.find(row.id).status == "pending"


async def test_a_person_with_the_name_of_a_key_does_not_get_its_runs(tmp_path):
    async with serve(tmp_path) as made:
        key, secret = made.keys.add("k", ["read", "run"])
        async with httpx.AsyncClient(base_url=made.url, headers={"X-Api-Key": secret}, trust_env=False) as owner:
            run = (await owner.post("/runs", json={"task": "a.txt"})).json()["id"]
        async with person(made, "x", **{"X-Forwarded-Email": key.id}) as other:
            assert (await other.get(f"/runs/{run}")).status_code == 404


async def test_a_person_with_the_name_of_a_key_does_not_decide_under_it(tmp_path):
    async with console(tmp_path, cleaner(), login=LOGIN) as made:
        key, secret = made.keys.add("ci", ["read", "run", "approve"])
        label = f"key ci ({key.id})"
        async with httpx.AsyncClient(base_url=made.url, headers={"X-Api-Key": secret}, trust_env=False) as robot:
            _, row = await waiting_call(made, robot)
            assert (await robot.post(f"/approvals/{row.id}", json=approval(row))).json()["by"] == label
        async with person(made, "x", **{"X-Forwarded-Email": label}) as other:
            _, row = await waiting_call(made, other)
            assert (await other.post(f"/approvals/{row.id}", json=approval(row))).json()["by"] == f"user:{label}"


@pytest.mark.parametrize(
    ("login", "why"),
    [
        ({**LOGIN, "header": "Authorization"}, "name a header of its own"),
        ({**LOGIN, "header": "no header"}, "name a header of its own"),
        ({**LOGIN, "addresses": []}, "addresses is empty"),
        ({**LOGIN, "addresses": ["proxy.example.org"]}, "use addresses or networks"),
        ({**LOGIN, "rights": ["reed"]}, "rights"),
        ({**LOGIN, "rights": []}, "rights is empty"),
        ({"header": "X-User"}, "addresses"),
        ({**LOGIN, "adresses": []}, "adresses"),
    ],
)
def test_a_login_that_cannot_work_is_an_error(login, why):
    with pytest.raises(ConfigError, match=why):
        ServerOptions.of({"login": login})


def test_a_server_with_a_login_needs_keys_for_everyone_else():
    assert ServerOptions.of({"login": LOGIN}).exposed
