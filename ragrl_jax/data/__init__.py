"""Questions: readers of the public layouts, the resumable stream, and the made-up world."""
