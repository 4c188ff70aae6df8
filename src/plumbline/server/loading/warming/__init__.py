"""Compile the GPU kernels of models before they are served."""
