"""Names of formulas that settings may have. This file imports nothing, so that settings are read without JAX."""

AGGREGATIONS = ("token_mean", "seq_mean_token_sum", "seq_mean_token_mean", "seq_mean_token_sum_norm")
ESTIMATORS = ("k1", "k2", "k3", "abs", "k1+", "k3+")  # of the KL divergence
UNBIASED = ("k2", "k1+", "k3+")  # on-policy, their expected gradient is the KL's
SURROGATES = ("clipped", "cispo")
