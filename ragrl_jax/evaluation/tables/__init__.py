"""The papers' tables beside our runs: `ragrl tables`. One file a paper holds its published numbers."""
