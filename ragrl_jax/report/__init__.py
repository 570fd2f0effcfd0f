"""A run's page: one self-contained HTML file with curves, tables and episodes."""
