"""Log records of the library, which the views tell better."""

from __future__ import annotations

import logging


def quiet_logs(debug: bool) -> None:
    """Keep the library's own records, with their tracebacks, off stderr unless they are wanted."""
    logger = logging.getLogger("hookline")
    if debug:
        logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s: %(message)s")
    else:
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
