"""Read LoRA adapters and keep those of a model: their configuration, their tensors, their place at linear layers."""
