"""Agent cards: the public description of an agent in the A2A protocol."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    APIKeySecurityScheme,
    HTTPAuthSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)

from ..._base.package import __version__
from ...models.attachments import ANY_TYPE
from ..agents import ServedAgent

VERSIONS = ("1.0", "0.3")
"""The supported versions of the protocol, the preferred one first."""
_TEXTS = ("text/plain", "application/json")
_FILES = ("image/*", "audio/*", "application/pdf", "text/*")
"""The types of files for a model that does not say which ones it takes. Others are rejected before the run starts."""


def file_types(agent: ServedAgent) -> tuple[str, ...]:
    """Return the media types of the files that an agent accepts."""
    return _FILES if set(agent.attachment_types) & set(ANY_TYPE) else agent.attachment_types


def agent_card(agent: ServedAgent, base_url: str, *, needs_key: bool) -> AgentCard:
    """Make the card of an agent.

    Args:
        agent: the agent.
        base_url: the URL of the server, with the path at which it is mounted.
        needs_key: whether callers need a key.
    """
    url = f"{base_url.rstrip('/')}/a2a/{quote(agent.name, safe='')}"
    card = AgentCard(
        name=agent.name,
        description=agent.description or f"The agent {agent.name}.",
        version=__version__,
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version=each) for each in VERSIONS
        ],
        capabilities=AgentCapabilities(streaming=True, push_notifications=True, extended_agent_card=True),
        default_input_modes=dict.fromkeys((*_TEXTS, *file_types(agent))),
        default_output_modes=("text/plain",),
        skills=_skills(agent),
    )
    if needs_key:
        card.security_schemes["bearer"].CopyFrom(_scheme(http_auth_security_scheme=_BEARER))
        card.security_schemes["api_key"].CopyFrom(_scheme(api_key_security_scheme=_API_KEY))
        either = [SecurityRequirement(schemes={name: StringList()}) for name in ("bearer", "api_key")]
        card.security_requirements.extend(either)
    return card


_BEARER = HTTPAuthSecurityScheme(scheme="Bearer", description="An API key of this server, as a bearer token.")
_API_KEY = APIKeySecurityScheme(location="header", name="X-API-Key", description="The same key in a header.")


def _scheme(**kind: Any) -> SecurityScheme:
    return SecurityScheme(**kind)


def _skills(agent: ServedAgent) -> list[AgentSkill]:
    talk = AgentSkill(
        id="talk", name="Talk", description=agent.description or f"Talk with {agent.name}.", tags=["chat"]
    )
    tools = [
        AgentSkill(id=f"tool-{name}", name=name, description=agent.about.get(name) or f"Uses {name}.", tags=["tool"])
        for name in agent.tools
    ]
    return [talk, *tools]
