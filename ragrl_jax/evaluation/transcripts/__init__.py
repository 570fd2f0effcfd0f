"""Transcripts of other systems, read into this library's episodes: `ragrl score`."""
