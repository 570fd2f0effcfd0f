"""The client of chat models behind an OpenAI-compatible server."""
