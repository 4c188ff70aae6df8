"""Stage 3 of the eyes: train encoder and projector through the frozen text model, on questions about pictures."""

import argparse
import os
import random
import time
from collections import defaultdict
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plumbline.pocket import MODEL_DIR
from plumbline_training import tokenizer
from plumbline_training.pictures import model as layout
from plumbline_training.pictures.conversation import Talks
from plumbline_training.pictures.draw import picture
from plumbline_training.pictures.optimizer import Muon
from plumbline_training.pictures.reader import Reader, branches_right
from plumbline_training.pictures.scene import Scene, Scenes
from plumbline_training.pictures.slots import classes
from plumbline_training.pictures.train_tower import Heads, distance, loss_of
from plumbline_training.pictures.train_vectors import Vectors, make_talks, table, topics_right
from plumbline_training.words import Lexicon

FURTHER_WEIGHT = 0.5
"""Weight of what the encoder was trained for before, on further pictures as well, which nothing is asked about."""
FAR_WEIGHT = 0.1
"""Weight of the distance to the vectors that were found without pictures; better ones may be near."""


class Trainer:
    """Encoder, projector, heads, the frozen text model, optimizers and averaged weights."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.manual_seed(args.seed)
        self.args = args
        tok = tokenizer.load()
        image = tokenizer.image_token(tok)
        model = layout.build(MODEL_DIR, image).model
        self.tower, self.projector = model.vision_tower, model.multi_modal_projector
        self.heads = Heads(self.tower.config.hidden_size)
        self.modules = nn.ModuleDict({"tower": self.tower, "projector": self.projector, "heads": self.heads})
        start = torch.load(args.run / "tower.pt", weights_only=True)["average"]
        self.modules.load_state_dict({**self.modules.state_dict(), **start})
        self.reader = Reader(MODEL_DIR, image)
        self.vectors = Vectors(self.reader.embeddings, tok)
        self.vectors.load_state_dict(torch.load(args.run / "vectors.pt", weights_only=True)["vectors"])
        self.talks = Talks(tok, Lexicon(random.Random(), pieces=tokenizer.letter_runs(tok)), image)
        self.held_out = Talks(tok, Lexicon(random.Random(), "eval"), image)
        named = [(n, p) for n, p in self.modules.named_parameters() if "post_layernorm" not in n]
        matrices = [p for n, p in named if p.dim() == 2 and "position" not in n and not n.startswith("heads")]
        others = [p for n, p in named if p.dim() != 2 or "position" in n or n.startswith("heads")]
        self.optimizers: list[torch.optim.Optimizer] = [
            Muon(matrices, lr=args.lr),
            torch.optim.AdamW(others, lr=args.lr, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self.average = {n: p.detach().clone() for n, p in self.modules.named_parameters()}
        self.step = 0
        self.path = args.run / "eyes.pt"
        if self.path.exists():
            state = torch.load(self.path, weights_only=True)
            self.modules.load_state_dict(state["modules"])
            for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
            self.average, self.step = state["average"], state["step"]

    def save(self) -> None:
        state = {
            "modules": self.modules.state_dict(),
            "optimizers": [o.state_dict() for o in self.optimizers],
            "average": self.average,
            "step": self.step,
        }
        torch.save(state, self.path.with_suffix(".new"))
        os.replace(self.path.with_suffix(".new"), self.path)

    def tokens(self, scenes: list[Scene], rng: random.Random) -> Tensor:
        """Return the last tokens of the encoder for new pictures of scenes."""
        grid = layout.pixels([picture(scene, rng).image for scene in scenes])
        found: Tensor = self.tower.encoder(inputs_embeds=self.tower.embeddings(grid)).last_hidden_state
        return found

    def rate(self) -> float:
        """Return the share of the full learning rate: warm-up, then a straight decay."""
        return float(min(1.0, (self.step + 1) / 20) * max(0.05, 1 - self.step / self.args.steps))

    def one_step(self, scenes: Scenes) -> list[float]:
        chosen, _, batch = make_talks(self.talks, scenes, self.args.batch, self.args.questions)
        further = [scenes.any() for _ in range(self.args.further)]
        hidden = self.tokens([*chosen, *further], scenes.rng)
        vectors = self.projector(hidden)
        logits, wanted, _ = self.reader(batch, vectors[: len(chosen)])
        answers = F.cross_entropy(logits, wanted)
        said = torch.tensor([classes(scene) for scene in [*chosen, *further]])
        spelled = loss_of(self.heads.pieces(hidden), said)
        far = distance(vectors, self.vectors([*chosen, *further]).detach(), said)
        torch.autograd.backward(answers + FURTHER_WEIGHT * spelled + FAR_WEIGHT * far)
        nn.utils.clip_grad_norm_(self.modules.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.param_groups[0]["lr"] = self.args.lr * self.rate()
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        keep = min(0.98, 1 - 1 / (1 + self.step / 10))
        with torch.no_grad():
            for name, p in self.modules.named_parameters():
                self.average[name].lerp_(p, 1 - keep)
        return [float(value.detach()) for value in (answers, spelled, far)]

    @torch.no_grad()
    def held_out_answers(self, count: int) -> str:
        """Return the share of right answers about held-out pictures, by topic, with the averaged weights."""
        now = {n: p.detach().clone() for n, p in self.modules.named_parameters()}
        self.modules.load_state_dict({**self.modules.state_dict(), **self.average})
        self.held_out.rng.seed(8)
        scenes = Scenes(random.Random(7), "eval")
        found: dict[str, list[bool]] = defaultdict(list)
        for _ in range(0, count, 12):
            chosen, made, batch = make_talks(self.held_out, scenes, 12, 6)
            vectors = self.projector(self.tokens(chosen, scenes.rng))
            logits, wanted, where = self.reader(batch, vectors)
            topics_right(made, branches_right(batch, logits.argmax(-1) == wanted, where), found)
        self.modules.load_state_dict({**self.modules.state_dict(), **now})
        return table(found)

    def run(self) -> None:
        while self.step < self.args.steps:
            scenes = Scenes(random.Random(f"eyes:{self.args.seed}:{self.step}"))
            self.talks.rng.seed(f"talks:{self.args.seed}:{self.step}")
            start, totals = time.time(), [0.0] * 3
            for _ in range(self.args.every):
                totals = [a + b for a, b in zip(totals, self.one_step(scenes), strict=True)]
            self.save()
            losses = " ".join(f"{total / self.args.every:.3f}" for total in totals)
            print(
                f"{time.strftime('%H:%M:%S')} step {self.step} losses {losses} "
                f"{(time.time() - start) / self.args.every:.2f} s/step {self.held_out_answers(60)}",
                flush=True,
            )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m plumbline_training eyes", description=__doc__)
    parser.add_argument("--run", type=Path, default=Path(".pocket"), help="folder of the checkpoints")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument(
        "--batch", type=int, default=8, help="pictures of a step that questions are asked about"
    )
    parser.add_argument("--questions", type=int, default=6, help="questions about each picture")
    parser.add_argument("--further", type=int, default=8, help="further pictures of a step")
    parser.add_argument("--every", type=int, default=50, help="steps between two checkpoints")
    parser.add_argument("--lr", type=float, default=4e-4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    args.run.mkdir(parents=True, exist_ok=True)
    Trainer(args).run()


if __name__ == "__main__":
    main()
