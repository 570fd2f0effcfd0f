"""Plans a run without its devices: work of a step, memory and traffic of a chip, compiled programs, the best mesh."""
