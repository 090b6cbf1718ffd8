"""What a model call costs, from the price list that ``genai-prices`` carries; the network is never asked."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from .._kernel.values import Usage


def cost_of(usage: Usage, *models: str, url: str, written: Mapping[str, int] | None = None) -> float | None:
    """The cost in USD; ``None`` where the model, the server or the price list is not known.

    Args:
        usage: the tokens; the cached ones are priced as such.
        models: names of the model, best first: as the server reported it, as it was asked for.
        url: the API's base URL, which says whose prices hold.
        written: tokens written into a cache, under ``genai-prices``' names for them.
    """
    prices = load_prices()
    if prices is None:
        return None
    tokens = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    for model in models:
        try:
            priced = prices.Usage(**tokens, cache_read_tokens=usage.cached_tokens, **(written or {}))
            return float(prices.calc_price(priced, model, provider_api_url=url).total_price)
        except (LookupError, ValueError, ArithmeticError):  # not in the list, or a server that counts strangely
            continue
    return None


@lru_cache(maxsize=1)
def load_prices() -> Any:
    """The package with the price list, which takes a moment to load; ``None`` if it is not installed."""
    try:
        import genai_prices
        import genai_prices.data
    except ImportError:
        return None
    return genai_prices
