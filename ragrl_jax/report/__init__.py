"""Reports of a run: its page, the pages of evaluations, the model card, and episodes in formats of other programs."""
