"""Trains an agent that calls tools in its model's own format: Python functions, MCP servers, the run's own search."""
