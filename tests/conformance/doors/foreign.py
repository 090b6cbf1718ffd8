"""The loops of other frameworks, with Hookline's hooks attached by an adapter."""

from __future__ import annotations

from pathlib import Path

from hookline import Limits
from tests.adapters.loops import Case, LoopDriver, installed

from ..build import TASK, Scene, story_of
from ..vectors import Story, Vector
from .base import Door


class Foreign(Door):
    """The loop of a framework."""

    def __init__(self, driver: LoopDriver) -> None:
        self.driver = driver
        self.id = driver.name.lower().replace(" ", "-")

    async def tell(self, vector: Vector, folder: Path) -> Story:
        """Run a vector in the framework.

        Raises:
            RegistrationError: the framework cannot express what a hook does.
        """
        scene = Scene(vector, folder)
        options = {"limits": Limits(**vector.limits)} if vector.limits else {}  # type: ignore[arg-type]
        mode = "stream" if vector.group == "on_token" else self.driver.modes[0]
        given = {"name": "main", **options}
        case = Case(scene.model, scene.plain_tools, tuple(scene.hooks), given, TASK, "You are a helper.", mode)
        outcome = await self.driver.run(case)
        return scene.executed(story_of(outcome.events))


FRAMEWORKS: tuple[Foreign, ...] = tuple(Foreign(driver) for driver in installed() if driver.support is not None)
"""The frameworks that are installed, and a plain loop, which always is."""
