"""CARE: reason with verbatim quotes from the context."""
