"""Released search agents, each in its own protocol."""
