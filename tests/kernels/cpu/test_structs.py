"""Structures of the CPU kernels have the values that they were given, and keep alive what they point to."""

from __future__ import annotations

import ctypes
import gc
import weakref

import torch

from plumbline_kernels.cpu.layout import AddNormOp, LatentStruct, LinearOp, MatrixStruct, NormStruct


def matrix(weight: torch.Tensor) -> MatrixStruct:
    return MatrixStruct(
        weight=weight, bias=None, scales=None, shifts=None, outputs=2, inputs=3, group=0, bits=0
    )


def test_tensors_live_as_long_as_the_structure_that_points_to_them() -> None:
    """Those of its own, of a structure within it and of a list of structures."""
    tensors = [torch.ones(6) for _ in range(5)]
    alive, addresses = [weakref.ref(each) for each in tensors], [each.data_ptr() for each in tensors]
    operation = LinearOp(x=tensors[0], matrix=matrix(tensors[1]))
    latent = LatentStruct(
        cos_sin=None,
        norm=NormStruct(weight=tensors[2]),
        keys=[matrix(tensors[3]), matrix(tensors[4])],
        values=None,  # type: ignore[arg-type]
        heads=2,
        rank=16,
        key_dim=16,
        rope_dim=16,
        value_dim=16,
    )
    tensors.clear()
    gc.collect()
    assert all(each() is not None for each in alive)
    keys = (MatrixStruct * 2).from_address(latent.keys)  # type: ignore[arg-type]
    found = [operation.x, operation.matrix.weight, latent.norm.weight, keys[0].weight, keys[1].weight]
    assert found == addresses
    del operation, latent, keys
    gc.collect()
    assert all(each() is None for each in alive)


def test_fields_are_the_values_the_defaults_or_zeros() -> None:
    operation = AddNormOp(x=None, norm=NormStruct(weight=None, eps=0.5, centred=True), width=32, scale=2.0)
    assert (operation.x, operation.residual, operation.out) == (None, None, None)
    assert (operation.width, operation.factor, operation.scale) == (32, 1.0, 2.0)
    assert (operation.norm.eps, operation.norm.centred, operation.norm.weight) == (0.5, 1, None)
    assert AddNormOp(x=None, norm=operation.norm, width=1, factor=0.0).factor == 0.0
    assert bytes(NormStruct(weight=None)) == bytes(ctypes.sizeof(NormStruct))
