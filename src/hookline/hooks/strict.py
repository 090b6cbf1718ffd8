"""Refuse tools that no guard names."""

from .._run.strict import Strict as Strict
