"""Generates tokens: lanes on the device, rows of the key-value cache, stop strings."""
