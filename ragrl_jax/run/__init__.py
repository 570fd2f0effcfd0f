"""Shared by training, fine-tuning and evaluation: player and questions from a config, rewards, warnings."""
