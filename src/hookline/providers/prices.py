"""Cost of model calls, from a given price or the price list in ``genai-prices``. No network is used."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from .._base.text import is_number
from .._kernel.errors import RegistrationError
from .._kernel.values import Usage


class Price(msgspec.Struct, frozen=True):
    """The price of a model, in USD for a million tokens.

    Example::

        model = get_model("groq:my-model", price=Price(input=0.5, output=1.5))

    Args:
        input: the price of the input.
        output: the price of the output.
        cached: the price of input that the vendor has in its cache; that of other input if omitted.

    Raises:
        RegistrationError: a price is not a number of at least 0.
    """

    input: float
    output: float
    cached: float | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            given = getattr(self, name)
            if not (is_number(given) and given >= 0) and not (name == "cached" and given is None):
                raise RegistrationError(f"the price {name}= must be USD for a million tokens, 0 or more, not {given!r}")

    def of(self, usage: Usage) -> float:
        """Return the cost of these tokens in USD."""
        cached = self.input if self.cached is None else self.cached
        fresh = usage.input_tokens - usage.cached_tokens
        return (fresh * self.input + usage.cached_tokens * cached + usage.output_tokens * self.output) / 1e6


def cost_of(usage: Usage, *models: str, url: str | None, cache_writes: Mapping[str, int] | None = None) -> float | None:
    """Return the cost in USD; ``None`` if the model, the server or the price list is unknown.

    Args:
        usage: the tokens, including cached ones.
        models: names of the model, best first: the one that the server reported, then the requested one.
        url: the base URL of the API, which determines the vendor; ``None`` if only the name of the model is known.
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
