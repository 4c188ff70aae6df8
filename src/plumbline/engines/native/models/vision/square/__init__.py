"""Read images of one square size with CLIP or SigLIP: LLaVA and Gemma 3."""
