"""Plans a run without its devices: a step's work, memory and traffic per chip, compiled programs, the best mesh."""
