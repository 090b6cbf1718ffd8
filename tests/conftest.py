"""Hypothesis looks for new examples here on a developer's machine, and at the same ones in CI."""

import os

from hypothesis import HealthCheck, settings

slow = [HealthCheck.too_slow]  # it measures the machine
settings.register_profile("here", suppress_health_check=slow)
settings.register_profile("ci", derandomize=True, suppress_health_check=slow)
settings.load_profile("ci" if os.environ.get("CI") else "here")
