"""Every vector in every framework that is installed here tells the story that Hookline's own loop tells."""

import logging
from importlib.util import find_spec

import pytest

from hookline.errors import RegistrationError
from tests.conformance.doors.foreign import FRAMEWORKS
from tests.conformance.stories import check
from tests.conformance.vectors import doors, vectors

LOOPS = [door for door in FRAMEWORKS if door.id != "plain-loop"]
"""The loops of frameworks. The plain loop is in ``tests/conformance``."""
DOORS = list(LOOPS)
if find_spec("agent_hooks") is not None:
    from tests.conformance.doors.agent_hooks import AgentHooksDoor

    DOORS.append(AgentHooksDoor())


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.id)
async def test_a_framework_tells_the_story_of_every_vector(door, tmp_path, monkeypatch):
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)  # many hooks fail on purpose
    await check(door, tmp_path)


@pytest.mark.parametrize("door", LOOPS, ids=lambda door: door.id)
async def test_hooks_that_a_framework_cannot_express_are_refused_when_they_are_attached(door, tmp_path):
    missing = door.driver.support.missing
    refused = {each.id for each in vectors() if each.needs & missing.keys() - {"before_llm.tools"}}
    listed = {each.id for each in vectors() if (found := doors()[door.id].why_not(each)) is not None and found.refused}
    assert listed == refused
    for vector in vectors():
        if vector.id in refused:
            with pytest.raises(RegistrationError):
                await door.tell(vector, tmp_path)
