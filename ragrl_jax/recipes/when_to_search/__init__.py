"""When to Search: search only if it pays, learned in two stages."""
