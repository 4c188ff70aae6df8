"""Read the sampling fields of all APIs: common parameters, sampler chains and beam search."""
