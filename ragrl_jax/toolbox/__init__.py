"""Tools that a model calls: typed Python functions, and the tools of MCP servers."""
