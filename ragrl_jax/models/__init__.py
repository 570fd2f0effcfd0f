"""The decoder and the text encoders, and the reading and writing of Hugging Face weights."""
