"""The client for chat models on OpenAI-compatible servers."""
