"""Read images with the tower of Gemma 4, which keeps their shape within a budget of patches."""
