"""Train the pocket model on one CPU core: seeded, resumable, logging the loss of every skill.

Data come in pools of a fixed number of tokens. Pool `n` depends on the seed and `n` alone, and a checkpoint
is written between pools, so a stopped run resumes exactly.
"""

import argparse
import json
import math
import random
import time
from collections import defaultdict
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from plumbline.pocket.folder import text_weights
from plumbline.pocket.network import Network, PocketShape
from plumbline_training import tokenizer
from plumbline_training.checkpoint import TrainingState
from plumbline_training.texts import corpus
from plumbline_training.texts.corpus import Document, DocumentWriter
from plumbline_training.texts.long_conversation import long_conversation
from plumbline_training.texts.words import Lexicon

POOL_TOKENS = 400_000
MICRO_TOKENS = 2048
MICRO_PER_STEP = 3
PAD = 0


def mix_at(tokens: float) -> dict[str, float]:
    """The curriculum: copying first, then the full mixture, long documents last."""
    if tokens < 2.5e6:
        return {"induction": 40, "instruction": 40, "json": 8, "talk": 6, "tool_call": 10, "tool_result": 3}
    mix = dict(corpus.DEFAULT_MIX)
    mix["drill"] = 8
    mix["long"] = 0.0 if tokens < 8e6 else mix["long"]
    return mix


def make_pool(
    seed: int,
    index: int,
    tok: Tokenizer,
    long_share: float = 0.0,
    longest: int = 4096,
    shortest_long: int = 800,
) -> list[list[Document]]:
    """Return micro-batches of documents of similar length, shuffled.

    `long_share` of the tokens are conversations of `shortest_long` to `longest` tokens, with lengths uniform on a log
    scale.
    """
    lexicon = Lexicon(random.Random(f"{seed}:{index}"), pieces=tokenizer.letter_runs(tok))
    renderer = DocumentWriter(tok)
    mix = mix_at(index * POOL_TOKENS)
    whole = sum(mix.values())
    pairs, drills = mix.pop("induction", 0.0) / whole, mix.pop("drill", 0.0) / whole
    documents, total, long_total = [], 0, 0
    while total < POOL_TOKENS:
        if long_total < long_share * (total + 1):
            size = int(math.exp(lexicon.rng.uniform(math.log(shortest_long), math.log(longest - 700))))
            document = long_conversation(lexicon, tok, size)
            long_total += len(document.ids)
        elif pairs and lexicon.chance(pairs):
            document = corpus.induction(lexicon, tok)
        elif drills and lexicon.chance(drills):
            document = renderer.drill(lexicon)
        else:
            document = renderer.document(corpus.make_sample(lexicon, mix))
        if len(document.ids) <= longest:
            documents.append(document)
            total += len(document.ids)
    documents.sort(key=lambda d: len(d.ids))
    batches: list[list[Document]] = []
    for document in documents:
        if batches and (len(batches[-1]) + 1) * len(document.ids) <= MICRO_TOKENS:
            batches[-1].append(document)
        else:
            batches.append([document])
    lexicon.rng.shuffle(batches)
    return batches


def tensors(batch: list[Document]) -> tuple[Tensor, Tensor]:
    length = (
        -(-(max(len(d.ids) for d in batch) - 1) // 16) * 16 + 1
    )  # few distinct shapes keep the kernels cached
    ids = torch.full((len(batch), length), PAD)
    weights = torch.zeros(len(batch), length)
    for row, d in enumerate(batch):
        ids[row, : len(d.ids)] = torch.tensor(d.ids)
        weights[row, : len(d.ids)] = torch.tensor(d.weights)
    return ids, weights


class Trainer:
    """Model, optimizers, averaged weights and the position in the run."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.manual_seed(args.seed)
        self.args = args
        self.tokenizer = tokenizer.load()
        self.network = Network(PocketShape())
        if args.start_from is not None:
            weights = text_weights(args.start_from)
            self.network.load_state_dict(
                {name: value.float() for name, value in weights.items()}, strict=True
            )
        if args.compile:
            for layer in self.network.model.layers:
                layer.compile(dynamic=True)
        matrices = [p for n, p in self.network.named_parameters() if p.dim() == 2 and "embed" not in n]
        others = [p for n, p in self.network.named_parameters() if p.dim() == 1 or "embed" in n]
        optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(
                matrices, lr=args.lr, weight_decay=0.05, momentum=0.95, adjust_lr_fn="match_rms_adamw"
            ),
            torch.optim.AdamW(others, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
        ]
        self.state = TrainingState(
            args.run / "checkpoint.pt",
            self.network,
            optimizers,
            keep=0.99,
            position={"pool": args.first_pool, "tokens": 0},
        )
        self.position = self.state.position

    def rate(self) -> float:
        """Return the share of the full learning rate: warm-up, plateau, linear decay."""
        done = self.position["tokens"] / self.args.tokens
        climb = min(1.0, (self.state.step + 1) / 100)
        return float(climb * min(1.0, max(0.02, (1 - done) / (1 - self.args.plateau))))

    def one_step(self, micro: list[list[Document]], losses: dict[str, list[float]]) -> None:
        total = sum(sum(d.weights) for batch in micro for d in batch)
        for batch in micro:
            ids, weights = tensors(batch)
            wanted = weights[:, 1:] > 0
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = self.network(ids[:, :-1], wanted)
            each = F.cross_entropy(logits.float(), ids[:, 1:][wanted], reduction="none")
            share = weights[:, 1:][wanted]
            torch.autograd.backward(torch.dot(each, share) / total)
            grid = torch.zeros_like(weights[:, 1:])
            grid[wanted] = each.detach()
            grid[weights[:, 1:] <= corpus.PROMPT_WEIGHT] = 0
            sums, counts = grid.sum(1), (weights[:, 1:] > corpus.PROMPT_WEIGHT).sum(1)
            for row, d in enumerate(batch):
                losses[d.skill].append(float(sums[row] / counts[row]))
            self.position["tokens"] += ids.numel()
        self.state.apply(self.rate())

    def run(self) -> None:
        while self.position["tokens"] < self.args.tokens:
            start, before = time.time(), self.position["tokens"]
            losses: dict[str, list[float]] = defaultdict(list)
            batches = make_pool(
                self.args.seed,
                self.position["pool"],
                self.tokenizer,
                self.args.long_share,
                self.args.longest,
                self.args.shortest_long,
            )
            for i in range(0, len(batches), MICRO_PER_STEP):
                self.one_step(batches[i : i + MICRO_PER_STEP], losses)
            self.position["pool"] += 1
            self.state.save()
            speed = (self.position["tokens"] - before) / (time.time() - start)
            table = {k: round(sum(v) / len(v), 3) for k, v in sorted(losses.items())}
            mean = sum(table.values()) / len(table)
            print(
                f"{time.strftime('%H:%M:%S')} step {self.state.step} tokens {self.position['tokens'] / 1e6:.2f}M "
                f"loss {mean:.3f} lr {self.rate():.2f} {speed:.0f} tok/s {json.dumps(table)}",
                flush=True,
            )
            if not math.isfinite(mean):
                raise RuntimeError("the loss is not finite")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m plumbline_training train", description=__doc__)
    parser.add_argument("--run", type=Path, default=Path(".pocket"), help="folder of the checkpoint")
    parser.add_argument("--tokens", type=float, default=25e6, help="tokens to train on, padding included")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument(
        "--plateau", type=float, default=0.5, help="share of the run at the full learning rate"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start-from", type=Path, help="model folder to start from if no checkpoint exists")
    parser.add_argument(
        "--first-pool", type=int, default=0, help="number of the first pool: decides data and curriculum"
    )
    parser.add_argument(
        "--long-share", type=float, default=0.0, help="share of the tokens in long conversations"
    )
    parser.add_argument(
        "--shortest-long", type=int, default=800, help="tokens of the shortest long conversation"
    )
    parser.add_argument("--longest", type=int, default=4096, help="tokens of the longest document")
    parser.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, default=True, help="needs a C++ compiler"
    )
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    args.run.mkdir(parents=True, exist_ok=True)
    Trainer(args).run()


if __name__ == "__main__":
    main()
