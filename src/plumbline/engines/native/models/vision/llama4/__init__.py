"""Read images in tiles with the tower of Llama 4."""
