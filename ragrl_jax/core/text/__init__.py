"""Text rules: tags, normalisation and quotes, as pure functions of strings."""
