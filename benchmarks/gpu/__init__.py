"""Try the Triton kernels and the families of models on a GPU, then time the kernels: `python -m benchmarks.gpu`.

Nothing needs watching, and `--minutes` bounds it. Every part is written when it has ended, and one that fails does not
end the others. Correctness comes first, with what has never run on a GPU at the beginning:

    ready     the start of the engine, and requests of all kinds: after the start no kernel may be compiled
    kernels   each operation in bf16 on the GPU, and its reference in fp32 on the CPU, from the same numbers
    families  the logits of a small random model of every family, in a prefill and in a step of a decode and a chunk

Then tokens a second of our server, and of vLLM where it is installed. Then the table: each operation as the models of
`benchmarks.roofline` launch it, its median time (with the L2 cache flushed before each run) beside the predicted one,
and the share of the roofline that it reaches. `--dry-run` does all of it but the servers with tiny shapes under
Triton's interpreter on a CPU, which shows that the script runs and measures nothing.

    operations   the operations, their inputs, and which launches of the roofline they are
    families     the models
    __main__     the order, the table and the files
"""
