"""One optimiser step: packing, advantages, accumulated gradients, and the update, which skips bad gradients."""
