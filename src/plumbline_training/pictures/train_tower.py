"""Stage 2 of the eyes: train encoder and projector to give each token of a picture the vector of its piece.

Classifiers of pieces and of patches, which the model does not keep, make the encoder learn sooner. The lower half
begins alone, on collages: it told 68 % of shapes after 19,000 pictures, the whole encoder 26 % after as many scenes.
"""

import argparse
import os
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plumbline.pocket import MODEL_DIR
from plumbline_training import tokenizer
from plumbline_training.pictures import model as layout
from plumbline_training.pictures.draw import picture
from plumbline_training.pictures.optimizer import Muon
from plumbline_training.pictures.scene import COLOURS, SHAPES, Scene, Scenes
from plumbline_training.pictures.slots import NOTHING, PIECES, PLACED, classes, patches, pieces
from plumbline_training.pictures.train_vectors import Vectors

ABSENT_WEIGHT = 0.05
"""Weight of a token that has nothing to say."""
_KINDS = {**dict.fromkeys(SHAPES, "shape"), **dict.fromkeys(COLOURS, "colour")}
_KINDS |= dict.fromkeys(("top", "bottom", "left", "right", "center"), "place")


SILENT_WEIGHT = 0.3
"""Weight of the vector of such a token."""
PATCH_WEIGHT = 1.0
"""Weight of the loss of patches, which makes the lower half of the encoder see shapes and characters sooner."""


def batch(scenes: Scenes, count: int) -> tuple[list[Scene], Tensor, Tensor, Tensor]:
    """Return scenes, pixels, what each token says [count, tokens] and what covers each patch [count, patches]."""
    chosen = [scenes.any() for _ in range(count)]
    drawn = [picture(scene, scenes.rng) for scene in chosen]
    side = layout.SIZE // layout.PATCH
    return (
        chosen,
        layout.pixels([each.image for each in drawn]),
        torch.tensor([classes(scene) for scene in chosen]),
        torch.tensor([patches(each, side) for each in drawn]),
    )


def collages(rng: random.Random, count: int) -> tuple[Tensor, Tensor]:
    """Return the pixels of collages and what covers each patch [count, patches]."""
    drawn = [picture(None, rng) for _ in range(count)]
    side = layout.SIZE // layout.PATCH
    return layout.pixels([each.image for each in drawn]), torch.tensor(
        [patches(each, side) for each in drawn]
    )


def patch_loss(covered: Tensor, covering: Tensor) -> Tensor:
    """Return the loss of what covers each patch; the background counts less."""
    share = torch.where(covering > 0, 1.0, 0.2)
    each = F.cross_entropy(covered.flatten(0, 1), covering.flatten(), reduction="none").view(share.shape)
    return (each * share).sum() / share.sum()


class Heads(nn.Module):
    """What the encoder is trained with: classifiers of its last tokens and of its patches after half of the layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.pieces = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, len(PIECES)))
        self.patches = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, len(PLACED)))


def loss_of(logits: Tensor, wanted: Tensor) -> Tensor:
    each = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none").view(wanted.shape)
    weight = torch.where(wanted > 0, 1.0, ABSENT_WEIGHT)
    return (each * weight).sum() / weight.sum()


def distance(found: Tensor, wanted: Tensor, said: Tensor) -> Tensor:
    """Return the mean square of the difference of vectors, as a share of that of the wanted ones.

    Args:
        found: [pictures, tokens, width].
        wanted: [pictures, tokens, width].
        said: the pieces that the vectors stand for, [pictures, tokens].
    """
    weight = torch.where(said > 0, 1.0, SILENT_WEIGHT)[..., None]
    return ((found - wanted).square() * weight).sum() / (wanted.square() * weight).sum()


class Trainer:
    """Encoder, projector, heads, optimizers, averaged weights and the position in the run."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.manual_seed(args.seed)
        self.args = args
        tok = tokenizer.load()
        model = layout.build(MODEL_DIR, tokenizer.image_token(tok)).model
        self.tower, self.projector = model.vision_tower, model.multi_modal_projector
        self.half = (len(self.tower.encoder.layers) + 1) // 2
        self.vectors = Vectors(model.language_model.embed_tokens.weight.detach(), tok)
        self.vectors.load_state_dict(torch.load(args.run / "vectors.pt", weights_only=True)["vectors"])
        self.heads = Heads(self.tower.config.hidden_size)
        named = [(n, p) for n, p in self.tower.named_parameters() if not n.startswith("post_layernorm")]
        named += self.projector.named_parameters()
        matrices = [p for n, p in named if p.dim() == 2 and "position" not in n]
        others = [p for n, p in named if p.dim() != 2 or "position" in n] + list(self.heads.parameters())
        self.optimizers: list[torch.optim.Optimizer] = [
            Muon(matrices, lr=args.lr, weight_decay=0.02),
            torch.optim.AdamW(others, lr=args.lr, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self.modules = nn.ModuleDict({"tower": self.tower, "projector": self.projector, "heads": self.heads})
        self.average = {n: p.detach().clone() for n, p in self.modules.named_parameters()}
        self.step = 0
        self.path = args.run / "tower.pt"
        if self.path.exists():
            self._load()

    def _load(self) -> None:
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

    def lower(self, grid: Tensor) -> Tensor:
        """Return the tokens after half of the layers."""
        hidden: Tensor = self.tower.embeddings(grid)
        for layer in self.tower.encoder.layers[: self.half]:
            hidden = layer(hidden, None)
        return hidden

    def logits(self, grid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits of pieces, those of patches after half of the layers, and the vectors."""
        hidden = self.lower(grid)
        covered = self.heads.patches(hidden)
        for layer in self.tower.encoder.layers[self.half :]:
            hidden = layer(hidden, None)
        return self.heads.pieces(hidden), covered, self.projector(hidden)

    def rate(self) -> float:
        """Return the share of the full learning rate: warm-up, plateau, linear decay to a twentieth."""
        done = self.step / self.args.steps
        return float(min(1.0, (self.step + 1) / 200) * min(1.0, max(0.05, (1 - done) / 0.5)))

    def one_step(
        self, chosen: list[Scene], grid: Tensor, wanted: Tensor, covering: Tensor
    ) -> tuple[float, float, float]:
        slots, covered, vectors = self.logits(grid)
        with torch.no_grad():
            targets = self.vectors(chosen)
        far = distance(vectors, targets, wanted)
        loss = loss_of(slots, wanted)
        local = patch_loss(covered, covering)
        torch.autograd.backward(loss + far + PATCH_WEIGHT * local)
        self._apply()
        return float(loss.detach()), float(far.detach()), float(local.detach())

    def local_step(self, grid: Tensor, covering: Tensor) -> tuple[float, float, float]:
        """Train the lower half of the encoder on collages: twice as fast, and with several times as much to learn."""
        loss = patch_loss(self.heads.patches(self.lower(grid)), covering)
        torch.autograd.backward(loss)
        self._apply()
        return 0.0, 0.0, float(loss.detach())

    def _apply(self) -> None:
        nn.utils.clip_grad_norm_(self.modules.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.param_groups[0]["lr"] = self.args.lr * self.rate()
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        keep = min(0.998, 1 - 1 / (1 + self.step / 10))
        with torch.no_grad():
            for name, p in self.modules.named_parameters():
                self.average[name].lerp_(p, 1 - keep)

    def run(self) -> None:
        while self.step < self.args.steps:
            scenes = Scenes(random.Random(f"tower:{self.args.seed}:{self.step}"))
            start, totals = time.time(), [0.0] * 3
            for _ in range(self.args.every):
                if self.step < self.args.local_steps:
                    losses = self.local_step(*collages(scenes.rng, self.args.batch))
                else:
                    losses = self.one_step(*batch(scenes, self.args.batch))
                totals = [a + b for a, b in zip(totals, losses, strict=True)]
            self.save()
            speed = self.args.every * self.args.batch / (time.time() - start)
            print(
                f"{time.strftime('%H:%M:%S')} step {self.step} losses "
                f"{' '.join(f'{total / self.args.every:.3f}' for total in totals)} "
                f"lr {self.rate():.2f} {speed:.0f} pictures/s {self.table(300)}",
                flush=True,
            )

    @torch.no_grad()
    def table(self, count: int) -> str:
        """Return the share of right slots among held-out pictures, with the averaged weights."""
        now = {n: p.detach().clone() for n, p in self.modules.named_parameters()}
        self.modules.load_state_dict({**self.modules.state_dict(), **self.average})
        if self.step <= self.args.local_steps:
            grid, covering = collages(random.Random(7), count)
            guessed = self.heads.patches(self.lower(grid)).argmax(-1)
            self.modules.load_state_dict({**self.modules.state_dict(), **now})
            good, shape = guessed == covering, (covering > 1) & (covering < 2 + len(SHAPES))
            character = covering >= 2 + len(SHAPES)
            shares = {"shapes": good[shape].float().mean(), "characters": good[character].float().mean()}
            return " ".join(f"{name} {100 * float(value):.0f}" for name, value in shares.items())
        chosen, grid, wanted, _ = batch(Scenes(random.Random(7), "eval"), count)
        right = self.logits(grid)[0].argmax(-1) == wanted
        self.modules.load_state_dict({**self.modules.state_dict(), **now})
        found: dict[str, list[bool]] = {}
        for row, scene in zip(right.tolist(), chosen, strict=True):
            for good, name in zip(row, pieces(scene), strict=True):
                if name != NOTHING:
                    kind = "key" if name.startswith("key") else _KINDS.get(name.partition(".")[0], "")
                    found.setdefault(
                        kind or (scene.kind + ("digit" if name.isdigit() else "letter")), []
                    ).append(good)
        return " ".join(f"{name} {100 * sum(v) / len(v):.0f}" for name, v in sorted(found.items()))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m plumbline_training tower", description=__doc__)
    parser.add_argument("--run", type=Path, default=Path(".pocket"), help="folder of the checkpoint")
    parser.add_argument("--steps", type=int, default=9000)
    parser.add_argument("--local-steps", type=int, default=1500, help="of these, on collages")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--every", type=int, default=100, help="steps between two checkpoints")
    parser.add_argument("--lr", type=float, default=6e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    args.run.mkdir(parents=True, exist_ok=True)
    Trainer(args).run()


if __name__ == "__main__":
    main()
