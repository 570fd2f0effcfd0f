"""The decoder and the text encoders, with Hugging Face weights read and written."""
