"""Uses trained checkpoints: an OpenAI-compatible server, and a command and a page to ask questions."""
