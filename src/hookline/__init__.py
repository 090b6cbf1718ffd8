"""Hookline: an agent loop with hooks at every step.

This module contains the names that most programs use; ``__init__.pyi`` lists them. All others are in public modules:
``agents``, ``hooks``, ``points``, ``payloads``, ``events``, ``errors``, ``tools``, ``models``, ``plugins``, ``stores``,
``channels``, ``teams``, ``server``, ``config``, ``tape`` and ``testing``. A name is imported when it is first used.
"""

from ._base.lazy import attach
from ._base.package import __version__ as __version__

__getattr__, __dir__ = attach(__name__)
