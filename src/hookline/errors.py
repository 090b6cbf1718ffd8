"""The errors of hooks and runs. Errors of a feature are in its module, such as ``hookline.stores.StoreError``."""

from ._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
