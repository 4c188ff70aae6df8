"""Read GPTQ checkpoints: 4 or 8 bits, packed along the inputs, with zero points and a scale for each group."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from plumbline.engines.native.models.checkpoint import WeightsError
from plumbline.engines.native.models.description import UnsupportedModelError
from plumbline.engines.native.models.fields import Json
from plumbline.engines.native.models.quantised.bits import places_of, unpacked, with_zeros
from plumbline.engines.native.models.quantised.fields import check, positive
from plumbline.engines.native.models.quantised.fp8 import SCALE_TYPES
from plumbline.engines.native.models.stored import StoredFormat, StoredWeight, Tensors

__all__ = ["Gptq", "read"]

_WHERE = "quantization_config"
_WITHOUT_EFFECT = (
    "act_group_aware backend batch_size block_name_to_quantize cache_block_outputs damp_auto_increment damp_percent "
    "dataset disable_exllama exllama_config lm_head max_input_length meta model_file_base_name "
    "model_name_or_path model_seqlen module_name_preceding_first_block modules_in_block_to_quantize mse pad_token_id "
    "static_groups tokenizer true_sequential use_cuda_fp16 use_exllama"
)
"""How the weights were found, and which kernels run them. The tensors show zero points and the order of inputs."""


@dataclass(frozen=True, slots=True)
class Gptq(StoredFormat):
    """`qweight` int32 [in / numbers of a word, out], `qzeros` [groups, out / numbers], `scales`, and `g_idx` [in]."""

    bits: int
    group: int | None
    """Inputs that share a scale; None for all."""
    first_zero: int
    """What is added to a stored zero point."""
    symmetric: bool
    """Whether the config says that zero points are in the middle."""
    ordered: bool
    """Whether it says that inputs are in order."""

    def read(self, tensors: Tensors, name: str, shape: tuple[int, int]) -> StoredWeight | None:
        """Read a weight; see `StoredFormat`."""
        module = name.removesuffix("weight")
        if module == name or not tensors.has(f"{module}qweight"):
            return None
        # Its tools may write a bias for every projection, also of models without any.
        tensors.ignore_zeros(f"{module}bias")
        outputs, inputs = shape
        group, words = self.group or inputs, 32 // self.bits
        groups = -(-inputs // group)
        packed = tensors.take(f"{module}qweight", (-(-inputs // words), outputs), types=(torch.int32,))
        levels = unpacked(packed.t(), self.bits)[:, :inputs]
        zeros = tensors.take(f"{module}qzeros", (groups, -(-outputs // words)), types=(torch.int32,))
        zeros = unpacked(zeros, self.bits)[:, :outputs].t() + self.first_zero & (1 << self.bits) - 1
        self._check_zeros(zeros, f"{module}qzeros")
        scales = tensors.take(f"{module}scales", (groups, outputs), types=SCALE_TYPES).t()
        places = None
        if tensors.has(f"{module}g_idx"):
            places = places_of(tensors, f"{module}g_idx", inputs, groups)
            if self.ordered and not torch.equal(places, torch.arange(inputs) // group):
                raise WeightsError(
                    f"{module}g_idx has inputs out of order, and {_WHERE}.desc_act is false: set it to true if the "
                    "tensor is right"
                )
        return with_zeros(levels, zeros, scales, places, group, self.bits)

    def _check_zeros(self, zeros: Tensor, name: str) -> None:
        """Refuse zero points that contradict the config.

        Published checkpoints say `gptq`, or nothing, and store zero points as `gptq_v2` does: read by the config each
        weight would be off by one scale.

        Raises:
            WeightsError: see above.
        """
        middle = 1 << self.bits - 1
        other = middle + (1 if self.first_zero else -1)
        if not zeros.numel() or bool((zeros == middle).all()):
            return
        if bool((zeros == other).all()):
            form = "gptq_v2" if self.first_zero else "gptq"
            raise WeightsError(
                f"{name} has zero points of {other} throughout, which are {middle} in another form: set "
                f"{_WHERE}.checkpoint_format to {form!r}"
            )
        if self.symmetric:
            raise WeightsError(
                f"{name} has zero points that are not {middle}, and {_WHERE}.sym is true: set it to false if the "
                "tensor is right"
            )


def _skipped(dynamic: object) -> object:
    """Return rules for single modules if all leave one as it was, which its tensors show."""
    is_skipping = isinstance(dynamic, dict) and all(str(rule).startswith("-:") for rule in dynamic)
    return dynamic if is_skipping else {}


def read(config: Json) -> StoredFormat:
    """Read the fields.

    Raises:
        UnsupportedModelError: see `read_format`.
    """
    forms = ("gptq", "gptq_v2")
    check(
        config,
        _WHERE,
        f"{_WITHOUT_EFFECT} group_size",
        bits=(4, 8),
        checkpoint_format=forms,
        format=forms,
        pack_dtype=("int32",),
        dynamic=({}, _skipped(config.get("dynamic"))),
        is_marlin_format=(False,),
        sym=(True, False),
        desc_act=(True, False),
    )
    bits, size = positive(config.get("bits"), f"{_WHERE}.bits"), config.get("group_size")
    if size is None:
        raise UnsupportedModelError(f"{_WHERE}.group_size is missing")
    group = None if size == -1 else positive(size, f"{_WHERE}.group_size")
    form = config.get("checkpoint_format") or config.get("format")
    # The first version stores zero points less one.
    # Groups as a whole may be in another order (`act_group_aware`).
    ordered = config.get("desc_act") is False and not config.get("act_group_aware")
    return Gptq(bits, group, 0 if form == "gptq_v2" else 1, bool(config.get("sym")), ordered)
