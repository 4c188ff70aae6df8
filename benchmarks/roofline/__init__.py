"""Predict which share of the roofline each Triton kernel reaches on GPUs that are not at hand.

    python -m benchmarks.roofline --to result.json --page docs/roofline.md

A prediction, not a measurement: no kernel has run. It finds launches that cannot fill a GPU, too few bytes in flight
and spilled registers; it does not know bank conflicts, the order of instructions, clock rates under load or the cost of
a launch (2 to 4 us each without CUDA graphs).

Each kernel is compiled for each GPU, which gives its registers, shared memory, matrix instruction and whether its loads
are pipelined. From these:

    resident   programs on a multiprocessor: the least of what registers, shared memory and warps allow
    waves      programs / (multiprocessors * resident), the last one partly filled
    chain      the loads of one program that wait for each other: latency * iterations of its loop / loads ahead
    memory     bytes of the wave / attainable bandwidth
    compute    on one multiprocessor: products / (peak * what the instruction reaches), + exponentials and other
               operations / their rates

    time of a wave = max(chain, memory, compute)
    roofline       = max(least bytes / bandwidth, useful products / peak)
    share          = roofline / (latency of the first load + sum of waves)

Bytes are those that must move once: what several programs read again comes from the L2 cache, and counts in the chain
alone, with the latency of that cache. Padding of tiles counts in products that are computed, not in useful ones.
"""
