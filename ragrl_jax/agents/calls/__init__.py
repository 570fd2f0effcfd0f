"""Tool calls in the formats of chat templates: found, parsed in a turn, rendered, and served."""
