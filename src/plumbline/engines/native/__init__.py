"""Run models with continuous batching over paged KV blocks, on the kernels of `plumbline_kernels`."""
