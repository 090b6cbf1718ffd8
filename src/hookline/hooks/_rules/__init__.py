"""Rules as data: the format of ``rules.toml``, its conditions in CEL, and the calls that they can ask about."""
