"""LEAR: rationale, compact evidence, answer."""
