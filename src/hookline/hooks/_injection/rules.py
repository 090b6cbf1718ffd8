"""Every sign of an attack."""

from __future__ import annotations

import re

from .forged import FORGED
from .rule import Core

RULES = tuple(FORGED)
"""Every sign that is a form, not a wording. A kind counts once in a text, with its strongest sign."""

CORE = (
    Core(
        "override",
        ("ignore", "disregard", "forget", "override", "bypass"),
        r"(?:all|any|the|of|my|every|these|those){0,4}"
        r"(?:previous|prior|earlier|above|preceding|your|old|former|existing|system){1,3}"
        r"(?:instruction|direction|directive|rule|order|guideline|prompt|command)",
    ),
    Core(
        "extraction",
        ("reveal", "print", "show", "output", "repeat", "dump", "leak", "display"),
        r"(?:me|us|all|of){0,3}your(?:full|entire|whole|complete|initial|secret|hidden|own){0,3}"
        r"(?:systemprompt|instructions|prompt)",
    ),
    Core("secrecy", ("donot", "dont", "never"), r"(?:tell|inform|notify|alert)(?:the|your)?(?:user|human|customer)"),
)
"""What attacks say most, in letters alone: also found where spaces are missing or misplaced, or letters are turned."""

HOT = re.compile(
    r"ignor|disregard|forget|instruction|system.prompt|assistant|you are now|do not tell|language model|<\|im_|"
    r"\[/?inst|https?://\S+\?|anweisung|instrucci|istruzion|instru[çc]|инструкц|указани|指令|指示|プロンプト|[\U000e0020-\U000e007e]"
)
"""Words, in small letters, without which hardly any attack can do: what lies around them is scored in long texts."""
