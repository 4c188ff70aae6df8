"""Define the operations of a forward pass, and implement them three times.

interface  the operations of a step, and the backend that runs a loop over them
step       the tokens of a step, with what kernels and torch share
kernels    as Triton kernels
eager      as torch on a CPU, and the choice between it and the kernels
recorded   as one call of compiled CPU kernels

The loop over layers (`models/transformer.py`) is written once and takes one of them, or records them.
"""
