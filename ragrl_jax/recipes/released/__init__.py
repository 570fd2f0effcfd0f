"""Released search agents in their own protocols."""
