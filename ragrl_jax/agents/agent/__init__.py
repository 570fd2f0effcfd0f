"""Trains an external agent: any program that uses an OpenAI-compatible endpoint."""
