"""Stage 2 of the eyes: train encoder and projector to give each token of a picture the vector of its piece.

Classifiers of pieces and of patches, which the model does not keep, make the encoder learn sooner. The lower half
begins alone, on collages: it told 68 % of shapes after 19,000 pictures, the whole encoder 26 % after as many scenes.
"""

import argparse
import random
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plumbline.pocket import MODEL_DIR
from plumbline_training import tokenizer
from plumbline_training.checkpoint import TrainingState
from plumbline_training.pictures import model_with_eyes as layout
from plumbline_training.pictures.draw import picture
from plumbline_training.pictures.optimizer import Muon
from plumbline_training.pictures.scene import COLOURS, SHAPES, Scene, Scenes
from plumbline_training.pictures.slots import NOTHING, PIECES, PLACED, classes, patches, pieces
from plumbline_training.pictures.train_vectors import Vectors, found_vectors
from plumbline_training.pictures.train_vectors import table as share_table

ABSENT_WEIGHT = 0.05
"""Weight of a token that has nothing to say."""
_KINDS = {**dict.fromkeys(SHAPES, "shape"), **dict.fromkeys(COLOURS, "colour")}
_KINDS |= dict.fromkeys(("top", "bottom", "left", "right", "center"), "place")


SILENT_WEIGHT = 0.3
"""Weight of the vector of such a token."""


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


class TowerClassifiers(nn.Module):
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


def vector_losses(
    vectors: Vectors, found: Tensor, scenes: list[Scene], wanted: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the distance to the vectors of scenes, and the loss of those that are nearer to another piece.

    Without the second loss, a distance of 7 % of the length hid every second digit. Tokens that say nothing count in
    full in it: the text model reads on where a text should have ended.
    """
    nearest = F.cross_entropy(
        vectors.nearness(found, scenes).flatten(0, 1), wanted.flatten(), reduction="sum"
    )
    return distance(found, vectors(scenes), wanted), nearest / (wanted > 0).sum()


class Eyes(nn.Module):
    """Encoder and projector of a model, and what they are trained with."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.tower, self.projector = model.vision_tower, model.multi_modal_projector
        self.heads = TowerClassifiers(self.tower.config.hidden_size)

    def optimizers(self, lr: float, weight_decay: float = 0.0) -> list[torch.optim.Optimizer]:
        """Return Muon for the matrices and AdamW for the rest."""
        # The model does not use the norm after the last layer.
        named = [(n, p) for n, p in self.named_parameters() if "post_layernorm" not in n]
        matrices = [p for n, p in named if p.dim() == 2 and "position" not in n and not n.startswith("heads")]
        others = [p for n, p in named if p.dim() != 2 or "position" in n or n.startswith("heads")]
        return [
            Muon(matrices, lr=lr, weight_decay=weight_decay),
            torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.98), weight_decay=0.0),
        ]

    def lower(self, grid: Tensor) -> Tensor:
        """Return the tokens of pictures after half of the layers."""
        layers = self.tower.encoder.layers
        hidden: Tensor = self.tower.embeddings(grid)
        for layer in layers[: (len(layers) + 1) // 2]:
            hidden = layer(hidden, None)
        return hidden

    def upper(self, hidden: Tensor) -> Tensor:
        """Return the tokens after all layers, from those after half of them."""
        layers = self.tower.encoder.layers
        for layer in layers[(len(layers) + 1) // 2 :]:
            hidden = layer(hidden, None)
        return hidden


class TowerTrainer:
    """Encoder, projector, heads and the position in the run."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.manual_seed(args.seed)
        self.args = args
        tok = tokenizer.load()
        model = layout.build(MODEL_DIR, tokenizer.image_token(tok)).model
        self.vectors = found_vectors(args.run, model.language_model.embed_tokens.weight.detach(), tok)
        self.eyes = Eyes(model)
        optimizers = self.eyes.optimizers(args.lr, weight_decay=0.02)
        self.state = TrainingState(args.run / "tower.pt", self.eyes, optimizers, keep=0.998)

    def rate(self) -> float:
        """Return the share of the full learning rate: warm-up, plateau, linear decay to a twentieth."""
        done = self.state.step / self.args.steps
        return float(min(1.0, (self.state.step + 1) / 200) * min(1.0, max(0.05, (1 - done) / 0.5)))

    def one_step(
        self, chosen: list[Scene], grid: Tensor, wanted: Tensor, covering: Tensor
    ) -> tuple[float, ...]:
        """Train on pictures of scenes; return the losses of pieces, vectors, nearest vectors and patches."""
        lower = self.eyes.lower(grid)
        hidden = self.eyes.upper(lower)
        losses = (
            loss_of(self.eyes.heads.pieces(hidden), wanted),
            *vector_losses(self.vectors, self.eyes.projector(hidden), chosen, wanted),
            patch_loss(self.eyes.heads.patches(lower), covering),
        )
        torch.autograd.backward(torch.stack(losses).sum())
        self.state.apply(self.rate())
        return tuple(float(loss.detach()) for loss in losses)

    def local_step(self, grid: Tensor, covering: Tensor) -> tuple[float, ...]:
        """Train the lower half of the encoder on collages: twice as fast, and with several times as much to learn."""
        loss = patch_loss(self.eyes.heads.patches(self.eyes.lower(grid)), covering)
        torch.autograd.backward(loss)
        self.state.apply(self.rate())
        return 0.0, 0.0, 0.0, float(loss.detach())

    def run(self) -> None:
        while self.state.step < self.args.steps:
            scenes = Scenes(random.Random(f"tower:{self.args.seed}:{self.state.step}"))
            start, totals = time.time(), [0.0] * 4
            for _ in range(self.args.every):
                if self.state.step < self.args.local_steps:
                    losses = self.local_step(*collages(scenes.rng, self.args.batch))
                else:
                    losses = self.one_step(*batch(scenes, self.args.batch))
                totals = [a + b for a, b in zip(totals, losses, strict=True)]
            self.state.save()
            speed = self.args.every * self.args.batch / (time.time() - start)
            with self.state.averaged(), torch.no_grad():
                table = self.table(300)
            print(
                f"{time.strftime('%H:%M:%S')} step {self.state.step} losses "
                f"{' '.join(f'{total / self.args.every:.3f}' for total in totals)} "
                f"lr {self.rate():.2f} {speed:.0f} pictures/s {table}",
                flush=True,
            )

    def table(self, count: int) -> str:
        """Return the share of held-out pieces that the nearest vectors stand for, or of patches of collages."""
        if self.state.step <= self.args.local_steps:
            grid, covering = collages(random.Random(7), count)
            good = self.eyes.heads.patches(self.eyes.lower(grid)).argmax(-1) == covering
            shape = (covering > 1) & (covering < 2 + len(SHAPES))
            character = covering >= 2 + len(SHAPES)
            shares = {"shapes": good[shape].float().mean(), "characters": good[character].float().mean()}
            return " ".join(f"{name} {100 * float(value):.0f}" for name, value in shares.items())
        chosen, grid, wanted, _ = batch(Scenes(random.Random(7), "eval"), count)
        vectors = self.eyes.projector(self.eyes.upper(self.eyes.lower(grid)))
        right = self.vectors.nearness(vectors, chosen).argmax(-1) == wanted
        found: dict[str, list[bool]] = {}
        for row, scene in zip(right.tolist(), chosen, strict=True):
            for good, name in zip(row, pieces(scene), strict=True):
                if name != NOTHING:
                    found.setdefault(_kind(name, scene), []).append(good)
            found.setdefault(f"all of {scene.kind}", []).append(all(row))
        return share_table(found)


def _kind(name: str, scene: Scene) -> str:
    """Return the column of the log that a piece belongs to."""
    if name.startswith("key"):
        return "key"
    kind = _KINDS.get(name.partition(".")[0], "")
    return kind or scene.kind + ("digit" if name.isdigit() else "letter")


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
    TowerTrainer(args).run()


if __name__ == "__main__":
    main()
