"""The papers' tables beside our runs (`ragrl tables`). The published numbers of each paper are in its own file."""
