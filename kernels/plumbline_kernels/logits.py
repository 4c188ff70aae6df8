"""Change logits before the draw: penalties for tokens seen before, and the bitmask of a grammar."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from plumbline_kernels._backend import CompileCase, cdiv, check, jit, tl, tuning, use_triton

__all__ = ["apply_bitmask", "apply_penalties"]


def apply_penalties(
    logits: Tensor,
    prompt_mask: Tensor,
    output_counts: Tensor,
    repetition: Tensor,
    frequency: Tensor,
    presence: Tensor,
) -> None:
    """Penalise, in place, tokens of the prompt and the output.

    Args:
        logits: fp32 [B, V].
        prompt_mask: bool [B, V], the tokens of the prompt.
        output_counts: int32 [B, V], how often each token was generated.
        repetition: fp32 [B]; divides positive and multiplies negative logits of tokens in prompt or output.
        frequency: fp32 [B]; times the count, subtracted.
        presence: fp32 [B]; subtracted once from each generated token.
    """
    check_logits("apply_penalties", logits)
    check(
        prompt_mask.shape == logits.shape and prompt_mask.dtype == torch.bool,
        "apply_penalties: prompt_mask must be bool with the shape of logits",
    )
    check(
        output_counts.shape == logits.shape and output_counts.dtype == torch.int32,
        "apply_penalties: output_counts must be int32 with the shape of logits",
    )
    if use_triton(logits):
        _launch_penalties(logits, prompt_mask, output_counts, repetition, frequency, presence)
    else:
        apply_penalties_torch(logits, prompt_mask, output_counts, repetition, frequency, presence)


def apply_penalties_torch(
    logits: Tensor,
    prompt_mask: Tensor,
    output_counts: Tensor,
    repetition: Tensor,
    frequency: Tensor,
    presence: Tensor,
) -> None:
    """Compute `apply_penalties` in torch; a penalty that no row uses costs one comparison."""
    generated = output_counts > 0
    if bool((repetition != 1).any()):
        factor = repetition.unsqueeze(1)
        penalised = torch.where(logits > 0, logits / factor, logits * factor)
        torch.where(prompt_mask | generated, penalised, logits, out=logits)
    if bool((frequency != 0).any()):
        logits.addcmul_(output_counts.float(), frequency.unsqueeze(1), value=-1)
    if bool((presence != 0).any()):
        logits.addcmul_(generated.float(), presence.unsqueeze(1), value=-1)


def apply_bitmask(logits: Tensor, bitmask: Tensor) -> None:
    """Set to -inf in place the logits of tokens that a grammar forbids.

    Args:
        logits: fp32 [B, V].
        bitmask: int32 [B, ceil(V / 32)]; token i is allowed if bit i % 32 of word i // 32 is set.
    """
    check_logits("apply_bitmask", logits)
    batch, vocab = logits.shape
    check(bitmask.shape == (batch, cdiv(vocab, 32)), "apply_bitmask: bitmask must be [B, ceil(V / 32)]")
    check(bitmask.dtype == torch.int32, "apply_bitmask: bitmask must be int32")
    if use_triton(logits):
        _launch_bitmask(logits, bitmask)
    else:
        apply_bitmask_torch(logits, bitmask)


def apply_bitmask_torch(logits: Tensor, bitmask: Tensor) -> None:
    """Compute `apply_bitmask` in torch; NumPy unpacks the bits in one pass where torch needs four."""
    vocab = logits.shape[1]
    octets = bitmask.contiguous().cpu().numpy().astype("<i4", copy=False).view(np.uint8)
    bits = np.unpackbits(octets, axis=1, bitorder="little")[:, :vocab]
    logits.masked_fill_(torch.from_numpy(bits == 0).to(logits.device), float("-inf"))


def check_logits(name: str, logits: Tensor) -> None:
    """Raise ValueError unless `logits` is fp32 [B, V] with contiguous rows."""
    check(
        logits.dim() == 2 and logits.dtype == torch.float32 and logits.stride(1) == 1,
        f"{name}: logits must be fp32 [B, V] with contiguous rows",
    )


@jit
def _penalties_kernel(
    logits_ptr,  # fp32 [B, V]
    prompt_mask_ptr,  # uint8 [B, V], contiguous
    output_counts_ptr,  # int32 [B, V], contiguous
    repetition_ptr,  # fp32 [B]
    frequency_ptr,
    presence_ptr,
    stride,
    vocab,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    repetition = tl.load(repetition_ptr + row)
    frequency = tl.load(frequency_ptr + row)
    presence = tl.load(presence_ptr + row)
    if (repetition == 1.0) & (frequency == 0.0) & (presence == 0.0):
        return
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = token < vocab
    counts = tl.load(output_counts_ptr + row * vocab + token, mask=mask, other=0)
    prompt = tl.load(prompt_mask_ptr + row * vocab + token, mask=mask, other=0)
    at = logits_ptr + row * stride + token
    logits = tl.load(at, mask=mask, other=0.0)
    generated = counts > 0
    penalised = tl.where(logits > 0, logits / repetition, logits * repetition)
    logits = tl.where((prompt != 0) | generated, penalised, logits)
    logits -= counts.to(tl.float32) * frequency
    logits -= tl.where(generated, presence, 0.0)
    tl.store(at, logits, mask=mask)


@jit
def _bitmask_kernel(
    logits_ptr,  # fp32 [B, V]
    bitmask_ptr,  # int32 [B, ceil(V / 32)]
    logits_stride,
    bitmask_stride,
    vocab,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = token < vocab
    word = tl.load(bitmask_ptr + row * bitmask_stride + token // 32, mask=mask, other=-1)
    forbidden = ((word >> (token % 32)) & 1) == 0
    # Only masked logits are written; the others are neither read nor stored.
    values = tl.full([BLOCK], float("-inf"), dtype=tl.float32)
    tl.store(logits_ptr + row * logits_stride + token, values, mask=mask & forbidden)


def _launch_penalties(
    logits: Tensor,
    prompt_mask: Tensor,
    output_counts: Tensor,
    repetition: Tensor,
    frequency: Tensor,
    presence: Tensor,
) -> None:
    batch, vocab = logits.shape
    check(
        prompt_mask.is_contiguous() and output_counts.is_contiguous(),
        "apply_penalties: prompt_mask and output_counts must be contiguous",
    )
    config = tuning("penalties")
    if batch:
        _penalties_kernel[(batch, cdiv(vocab, config["block"]))](
            logits,
            prompt_mask.view(torch.uint8),
            output_counts,
            repetition,
            frequency,
            presence,
            logits.stride(0),
            vocab,
            BLOCK=config["block"],
            num_warps=config["num_warps"],
        )


def _launch_bitmask(logits: Tensor, bitmask: Tensor) -> None:
    batch, vocab = logits.shape
    check(bitmask.stride(1) == 1, "apply_bitmask: rows of bitmask must be contiguous")
    config = tuning("bitmask")
    if batch:
        _bitmask_kernel[(batch, cdiv(vocab, config["block"]))](
            logits,
            bitmask,
            logits.stride(0),
            bitmask.stride(0),
            vocab,
            BLOCK=config["block"],
            num_warps=config["num_warps"],
        )


def compile_cases() -> Iterator[CompileCase]:
    """Yield one launch of each kernel: their block sizes do not depend on the model."""
    rows = {f"{name}_ptr": "*fp32" for name in ("repetition", "frequency", "presence")}
    yield CompileCase(
        "apply_penalties",
        _penalties_kernel,
        {"logits_ptr": "*fp32", "prompt_mask_ptr": "*u8", "output_counts_ptr": "*i32"}
        | rows
        | {"stride": "i32", "vocab": "i32"},
        {"BLOCK": tuning("penalties")["block"]},
        tuning("penalties"),
    )
    yield CompileCase(
        "apply_bitmask",
        _bitmask_kernel,
        {"logits_ptr": "*fp32", "bitmask_ptr": "*i32"}
        | dict.fromkeys(("logits_stride", "bitmask_stride", "vocab"), "i32"),
        {"BLOCK": tuning("bitmask")["block"]},
        tuning("bitmask"),
    )
