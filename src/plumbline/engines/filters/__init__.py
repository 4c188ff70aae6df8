"""Filter the logits of one request with the samplers that the batched kernels lack."""
