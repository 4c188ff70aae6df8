"""Run the operations of a model on CPUs as C++ kernels, compiled once for the machine at hand.

`layout` declares the operations and structures that Python and C++ share, and writes them as a header with `structs`;
`build` compiles the sources of this folder with the system's compiler and keeps the result in the user's cache;
`library` wraps it; `program` records the operations of a forward pass and runs them in one call. The sources:

    vector.h     sixteen floats at a time, conversions, exp2
    product.h    products of a few rows with packed columns
    tiles.h      the same on the tiles of AMX
    linear.h     linear layers
    quantized.h  linear layers with weights of 8 or 4 bits
    rows.h       norms, gated activations, rotation with the cache write
    experts.h    the choice of experts, and the sum of their results
    latent.h     latent attention around the attention over the cache
    delta.h      gated delta nets and state spaces
    sampling.h   filters and the draw
    attention.h  attention over the paged cache
    threads.h    the pool of threads that shares their work
    program.cpp  the interpreter of recorded operations

The reference implementations are those of the Triton kernels (`*_torch`). A row of a result has the same bits in any
batch, because it is summed in an order of its own.
"""
