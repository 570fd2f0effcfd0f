"""The maths and the text rules: pure functions without files, clocks or hidden randomness."""
