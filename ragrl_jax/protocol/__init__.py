"""OpenAI's protocol on the server's side: requests are read and checked, replies and errors are written."""
