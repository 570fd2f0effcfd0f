"""VERITAS: search, and be paid for thoughts that follow from what was found."""
