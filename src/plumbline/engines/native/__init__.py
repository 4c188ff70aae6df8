"""Our engine: continuous batching over paged KV blocks on the kernels of `plumbline_kernels`."""
