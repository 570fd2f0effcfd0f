"""A run's sizes by arithmetic: what a step has to do, what a chip holds and sends, and which mesh is best."""
