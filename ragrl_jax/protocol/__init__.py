"""The server side of OpenAI's protocol: parses and checks requests, and writes replies and errors."""
