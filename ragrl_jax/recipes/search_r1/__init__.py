"""Search-R1: search in several turns, then answer."""
