"""Hookline: an agent loop with hooks at every moment.

Everything a user needs is here; :mod:`hookline.api` lists it. It is imported when the first name is used, so that
programs which need only a part (the command line showing its help, say) do not wait for all of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._base.point_modules import POINT_MODULES
from ._base.version import __version__ as __version__

if TYPE_CHECKING:
    from .api import *  # noqa: F403
    from .api import __all__ as __all__

POINT_MODULES[:] = [f"{__name__}.channels.points", f"{__name__}.teams.points", f"{__name__}.stores.ticket_points"]


def __getattr__(name: str) -> Any:
    api = import_module(".api", __name__)
    if not hasattr(api, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(api, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
