"""Tokenizers, chat templates, and passages as text."""
