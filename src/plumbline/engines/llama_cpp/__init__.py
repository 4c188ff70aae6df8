"""Run GGUF files with llama.cpp behind the port: quantised models on CPUs and GPUs."""
