"""Call a function of this folder and print what it returns as a line of JSON.

python bench/call.py probes.audit:rates '{"count": 1000}'
"""

import importlib
import json
import sys
from typing import Any


def call(function: str, options: dict[str, Any]) -> Any:
    """Return the result of calling ``module:name``."""
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)(**options)


if __name__ == "__main__":
    print(json.dumps(call(sys.argv[1], json.loads(sys.argv[2]))))
