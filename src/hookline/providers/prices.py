"""Cost of model calls, from the price list in ``genai-prices``. No network is used."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from .._kernel.values import Usage


def cost_of(usage: Usage, *models: str, url: str, cache_writes: Mapping[str, int] | None = None) -> float | None:
    """Return the cost in USD; ``None`` if the model, the server or the price list is unknown.

    Args:
        usage: the tokens, including cached ones.
        models: names of the model, best first: the one that the server reported, then the requested one.
        url: the base URL of the API, which determines the vendor.
        cache_writes: tokens written to the vendor's cache, by the names that ``genai-prices`` uses.
    """
    prices = load_prices()
    if prices is None:
        return None
    tokens = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    for model in models:
        try:
            priced = prices.Usage(**tokens, cache_read_tokens=usage.cached_tokens, **(cache_writes or {}))
            return float(prices.calc_price(priced, model, provider_api_url=url).total_price)
        except (LookupError, ValueError, ArithmeticError):  # the model is not in the list, or the counts are invalid
            continue
    return None


@lru_cache(maxsize=1)
def load_prices() -> Any:
    """Import the price list, which takes a moment; ``None`` if it is not installed."""
    try:
        import genai_prices
        import genai_prices.data
    except ImportError:
        return None
    return genai_prices
