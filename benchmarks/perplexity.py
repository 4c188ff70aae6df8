"""Measure what rounded weights cost in quality: perplexity of a published model on texts, by their bits.

Run as `python -m benchmarks.perplexity MODEL TEXT...`; MODEL is a folder or a GGUF file, whose weights are dequantised,
as if a folder had them.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from benchmarks.quantization import FORMATS, score
from plumbline.engines.native.models import Transformer, load_model
from plumbline.engines.native.models.gguf import read_model
from plumbline.engines.native.models.gguf.tensors import GgufTensors
from plumbline.engines.native.models.loading.model_folder import build, for_length
from plumbline.engines.native.models.stored import dense
from plumbline_kernels.cpu.library import load

_WINDOW = 768
"""Tokens that a text is cut into; no shorter rest than a quarter of it counts."""


def main() -> None:
    """Print a row for each format: the perplexity of each text, and the mean ratio to the first row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--tokens", type=int, default=4 * _WINDOW, help="of each text at most")
    args = parser.parse_args()
    torch.set_num_threads(1)
    windows = {path.name: _windows(args.model, path, args.tokens) for path in args.texts}
    first: list[float] = []
    for name, bits in FORMATS.items():
        model = _loaded(args.model, bits)
        found = [_perplexity(model, each) for each in windows.values()]
        first = first or found
        ratios = [each / base for each, base in zip(found, first, strict=True)]
        cells = [
            f"{text} {each:.3f} ({ratio:.4f})"
            for text, each, ratio in zip(windows, found, ratios, strict=True)
        ]
        mean = math.prod(ratios) ** (1 / len(ratios))
        print(f"{name:5} {'  '.join(cells)}  mean ratio {mean:.4f}", flush=True)


def _windows(model: Path, text: Path, most: int) -> list[list[int]]:
    place = {"gguf_file": model.name} if model.is_file() else {}
    tokenizer: Any = AutoTokenizer.from_pretrained(model.parent if place else model, **place)
    ids: list[int] = tokenizer(text.read_text(encoding="utf-8"))["input_ids"][:most]
    cut = [ids[start : start + _WINDOW] for start in range(0, len(ids), _WINDOW)]
    return [each for each in cut if len(each) >= _WINDOW // 4]


def _loaded(path: Path, bits: int) -> Transformer:
    if path.is_dir():
        return load_model(path, torch.bfloat16, max_model_len=_WINDOW, library=load(), bits=bits)
    model = read_model(path)
    device = torch.device("cpu")
    tensors = GgufTensors(model, torch.bfloat16, device)

    def fetch(name: str, shape: tuple[int, ...], dtype: torch.dtype | None) -> torch.Tensor:
        return dense(tensors.fetch_weight(name, shape, dtype), dtype or torch.bfloat16, device)

    return build(for_length(model.description, _WINDOW), fetch, torch.bfloat16, device, load(), bits)


def _perplexity(model: Transformer, windows: list[list[int]]) -> float:
    loss = torch.cat([score(model, window[:1], window[1:])[0] for window in windows])
    return math.exp(loss.mean())


if __name__ == "__main__":
    main()
