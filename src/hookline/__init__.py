"""Hookline: an agent loop with hooks at every moment.

The names that most programs use are here; ``__init__.pyi`` lists them. The others are in the public modules:
``agents``, ``hooks``, ``points``, ``payloads``, ``events``, ``errors``, ``tools``, ``models``, ``plugins``, ``stores``,
``channels``, ``teams``, ``server``, ``config``, ``tape`` and ``testing``. A name is imported when it is first used.
"""

from ._base.lazy import attach
from ._base.point_modules import POINT_MODULES
from ._base.version import __version__ as __version__

POINT_MODULES[:] = [f"{__name__}.channels.points", f"{__name__}.teams.points", f"{__name__}.stores.ticket_points"]

__getattr__, __dir__ = attach(__name__)
