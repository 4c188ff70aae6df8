"""The compiled step chooses the tokens that torch chooses, or one that ties with them in the last bits."""

from __future__ import annotations

import random

import pytest
import torch
from support.weights.model_driver import Driver

from plumbline.engines.native.models import load_model
from plumbline.pocket import MODEL_DIR
from plumbline_kernels.cpu.library import load

SEQUENCES, STEPS = 8, 1250


@pytest.mark.long
@pytest.mark.parametrize(("dtype", "bits"), [(torch.float32, 2**-13), (torch.bfloat16, 2**-3)], ids=str)
@torch.inference_mode()
def test_ten_thousand_greedy_tokens_are_those_of_torch_or_tie(dtype: torch.dtype, bits: float) -> None:
    """Both get the compiled step's tokens. `bits`: rounding of logits near 16, of which a bit in bf16 is 1/16."""
    drivers = []
    for library in (load(), None):
        model = load_model(MODEL_DIR, dtype, library=library)
        assert (model.head.packed is None) == (library is None)
        drivers.append(Driver(model, num_blocks=SEQUENCES * (STEPS // 16 + 4)))
    choose = random.Random(1)
    prompts = [choose.choices(range(10, 900), k=5 + number) for number in range(SEQUENCES)]
    compiled, plain = (
        [driver.add(tokens, len(tokens) + STEPS + 1) for tokens in prompts] for driver in drivers
    )
    differ = 0
    for step in range(STEPS):
        counts = [len(prompt) if step == 0 else 1 for prompt in prompts]
        ours, theirs = (
            driver.last(list(zip(sequences, counts, strict=True)))
            for driver, sequences in zip(drivers, (compiled, plain), strict=True)
        )
        chosen = ours.argmax(-1)
        gaps = theirs.max(-1).values - theirs.gather(1, chosen[:, None])[:, 0]
        assert gaps.max() <= bits
        differ += int((gaps > 0).sum())
        for one, other, token in zip(compiled, plain, chosen.tolist(), strict=True):
            one.tokens.append(token)
            other.tokens.append(token)
    assert differ < SEQUENCES * STEPS / 100
