"""Tools that a model can call: typed Python functions, and the tools of MCP servers."""
