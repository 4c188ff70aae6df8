"""Provide the engine's operations as Triton kernels, each with a reference implementation in torch (`*_torch`).

The reference implementation runs on CPU and is what the tests compare the kernel with. The package imports nothing
from the server. One module per group of operations; this one imports none, so that `cpu.build` comes without torch.

    norm       RMS and layer norm, alone and fused with the residual add
    rope_kv    rotary embedding, fused with writing keys and values into the paged cache
    attention  attention over the paged cache
    delta      gated delta nets
    latent     latent attention
    swiglu     the activations of feed-forward blocks
    experts    the choice of experts for each token, and the sum of their results; its Triton kernel is in
               `_experts_triton`
    narrow     products with weights of 8 or 4 bits
    logits     penalties and grammar bitmasks
    sampling   temperature, top-k, top-p, min-p and the draw; its Triton kernels are in `sampling/`
    cpu        the C++ kernels of a CPU
"""
