"""The server side of OpenAI's protocol: reads and checks requests, writes replies and errors."""
