"""Agent cards."""

import httpx
from a2a.client import A2ACardResolver
from a2a.types import GetExtendedAgentCardRequest

from hookline import tool

from ..rig import make
from .rig import serving_a2a

CARD = "/.well-known/agent-card.json"


@tool
def look(at: str) -> str:
    """Look at something."""
    return at


async def test_a_card_describes_the_agent_and_its_urls(tmp_path):
    first, second = make(name="first", tools=[look]), make(name="second")
    first.description = "Looks at things."
    async with serving_a2a(tmp_path, first, second) as rig, httpx.AsyncClient(verify=False, timeout=60) as http:
        card = await A2ACardResolver(http, rig.url).get_agent_card()
        assert (card.name, card.description) == ("first", "Looks at things.")
        assert [(skill.name, skill.description) for skill in card.skills][1:] == [("look", "Look at something.")]
        assert [(each.url, each.protocol_version) for each in card.supported_interfaces] == [
            (f"{rig.url}/a2a/first", "1.0"),
            (f"{rig.url}/a2a/first", "0.3"),
        ]
        assert card.capabilities.streaming
        assert card.capabilities.push_notifications
        assert not card.security_schemes
        assert (await A2ACardResolver(http, f"{rig.url}/a2a/second").get_agent_card()).name == "second"
        old = (await http.get(f"{rig.url}{CARD}")).json()
        assert (old["url"], old["protocolVersion"]) == (f"{rig.url}/a2a/first", "0.3")
        missing = await http.get(f"{rig.url}/a2a/third{CARD}")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "unknown_agent")
        async with rig.client("second") as client:
            assert (await client.get_extended_agent_card(GetExtendedAgentCardRequest())).name == "second"


async def test_a_card_needs_a_key_unless_public_and_lists_the_accepted_keys(tmp_path):
    (tmp_path / "b").mkdir()
    async with serving_a2a(tmp_path, keys=True) as rig, httpx.AsyncClient(verify=False, timeout=60) as http:
        assert (await http.get(f"{rig.url}{CARD}")).status_code == 401
        card = (await http.get(f"{rig.url}{CARD}", headers=rig.key("me", "approve"))).json()
        assert set(card["securitySchemes"]) == {"bearer", "api_key"}
        assert len(card["securityRequirements"]) == 2
    options = {"public_card": True, "public_url": "https://agents.example.com/"}
    async with (
        serving_a2a(tmp_path / "b", keys=True, **options) as rig,
        httpx.AsyncClient(verify=False, timeout=60) as http,
    ):
        card = (await http.get(f"{rig.url}{CARD}")).json()
        assert card["url"] == "https://agents.example.com/a2a/helper"
        assert set(card["securitySchemes"]) == {"bearer", "api_key"}
        assert (await http.post(f"{rig.url}/a2a/helper", json={})).status_code == 401
        unknown = await http.get(f"{rig.url}/a2a/x{CARD}")
        assert (unknown.status_code, "helper" in unknown.text) == (
            404,
            False,
        )  # only callers with a key may see the names of agents
