"""ARENA: cite passage numbers, analyse, answer."""
