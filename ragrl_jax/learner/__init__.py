"""One optimiser step: packing, advantages, accumulated gradients, guarded update."""
