"""Implement the engine port with llama.cpp, which runs GGUF files: quantised models on CPUs and GPUs."""
