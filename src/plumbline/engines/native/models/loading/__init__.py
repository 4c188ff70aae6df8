"""Load the weights that a description asks for, and assemble the transformer.

model         load a folder, or make random weights
mixers        fetch attentions, latent attentions, delta nets and state spaces
feed_forward  fetch dense blocks and experts
source        fetch norms and linear layers
projections   merge projections and order their rows
"""
