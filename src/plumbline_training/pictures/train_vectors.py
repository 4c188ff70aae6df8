"""Stage 1 of the eyes: find the vectors that the frozen text model reads as the pieces of a picture.

No picture is drawn: each token of a picture gets a vector for what it is to say, which starts as the text model's own
embedding of that piece. The vectors learn until the text model answers questions from them.
"""

import argparse
import random
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from plumbline.pocket import MODEL_DIR
from plumbline_training import tokenizer
from plumbline_training.checkpoint import TrainingState, mean_weights
from plumbline_training.pictures.branch_reader import Reader, branches_right
from plumbline_training.pictures.conversation import Talk, TalkBatch, Talks, joined
from plumbline_training.pictures.model_with_eyes import TOKENS
from plumbline_training.pictures.scene import KINDS, Scene, Scenes
from plumbline_training.pictures.slots import PIECES, classes, first_tokens
from plumbline_training.texts.words import Lexicon


class Vectors(nn.Module):
    """The vectors of a scene: by piece, by place and kind of scene, and by both piece and place."""

    base: Tensor

    def __init__(self, embeddings: Tensor, tok: Tokenizer) -> None:
        super().__init__()
        width = embeddings.shape[1]
        self.register_buffer("base", embeddings[torch.tensor(first_tokens(tok))].clone())
        self.piece = nn.Parameter(torch.zeros(len(PIECES), width))
        self.place = nn.Parameter(torch.zeros(len(KINDS), TOKENS, width))
        self.both = nn.Parameter(torch.zeros(TOKENS, len(PIECES), width))

    def forward(self, scenes: list[Scene]) -> Tensor:
        """Return the vectors of scenes, [scenes, tokens, width]."""
        said = torch.tensor([classes(scene) for scene in scenes])
        kinds = torch.tensor([KINDS.index(scene.kind) for scene in scenes])
        return (
            self.base[said]
            + self.piece[said]
            + self.place[kinds]
            + self.both[torch.arange(TOKENS)[None], said]
        )

    def nearness(self, found: Tensor, scenes: list[Scene]) -> Tensor:
        """Return how near vectors are to that of each piece, as logits, [scenes, tokens, pieces].

        The logits are minus half of the squared distance, less a term that all pieces of a token share.

        Args:
            found: vectors of pictures of the scenes, [scenes, tokens, width].
            scenes: the scenes.
        """
        kinds = torch.tensor([KINDS.index(scene.kind) for scene in scenes])
        known = self.base + self.piece + self.both
        products = torch.einsum("btw,tpw->btp", found - self.place[kinds], known)
        return products - known.square().sum(-1) / 2


def found_vectors(run: Path, embeddings: Tensor, tok: Tokenizer) -> Vectors:
    """Return the vectors that a run has found, which do not change any more."""
    vectors = Vectors(embeddings, tok)
    vectors.load_state_dict(mean_weights(run / "vectors.pt"), strict=False)
    return vectors.requires_grad_(False)


def make_talks(
    talks: Talks, scenes: Scenes, count: int, questions: int
) -> tuple[list[Scene], list[Talk], TalkBatch]:
    """Return scenes, and conversations about them as a list and as a batch."""
    chosen = [scenes.any() for _ in range(count)]
    made = [talks.talk(scene, questions) for scene in chosen]
    return chosen, made, joined(made)


class HeldOut:
    """Ask the text model about held-out scenes, each time the same ones."""

    def __init__(self, reader: Reader, tok: Tokenizer, image_token: int) -> None:
        self.reader = reader
        self.talks = Talks(tok, Lexicon(random.Random(), "eval"), image_token)

    @torch.no_grad()
    def __call__(self, count: int, see: Callable[[list[Scene], random.Random], Tensor]) -> str:
        """Return the share of right answers, by topic.

        Args:
            count: number of scenes; six questions are asked about each.
            see: gives the vectors of scenes, [scenes, tokens, width]. Its random numbers are for drawing.
        """
        self.talks.rng.seed(8)
        scenes = Scenes(random.Random(7), "eval")
        found: dict[str, list[bool]] = defaultdict(list)
        for _ in range(0, count, 12):
            chosen, made, batch = make_talks(self.talks, scenes, 12, 6)
            logits, wanted, where = self.reader(batch, see(chosen, scenes.rng))
            right = branches_right(batch, logits.argmax(-1) == wanted, where)
            for row, talk in zip(right.tolist(), made, strict=True):
                for good, topic in zip(row, talk.topics, strict=False):
                    found[topic].append(good)
        return table(found)


def table(found: dict[str, list[bool]]) -> str:
    return " ".join(f"{name} {100 * sum(v) / len(v):.0f}" for name, v in sorted(found.items()))


class VectorTrainer:
    """Vectors, optimizer and the position in the run."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        tok = tokenizer.load()
        image = tokenizer.image_token(tok)
        self.reader = Reader(MODEL_DIR, image)
        self.vectors = Vectors(self.reader.embeddings, tok)
        self.talks = Talks(tok, Lexicon(random.Random(), pieces=tokenizer.letter_runs(tok)), image)
        self.held_out = HeldOut(self.reader, tok, image)
        shared = [self.vectors.piece, self.vectors.place]
        optimizer = torch.optim.Adam(
            [{"params": shared, "lr": args.lr}, {"params": [self.vectors.both], "lr": args.lr / 2}],
            betas=(0.9, 0.98),
        )
        self.state = TrainingState(args.run / "vectors.pt", self.vectors, [optimizer], keep=0.98)

    def rate(self) -> float:
        """Return the share of the full learning rate: warm-up, plateau, linear decay to a twentieth."""
        done = self.state.step / self.args.steps
        return float(min(1.0, (self.state.step + 1) / 20) * min(1.0, max(0.05, 2 * (1 - done))))

    def one_step(self, scenes: Scenes) -> float:
        chosen, _, batch = make_talks(self.talks, scenes, self.args.batch, self.args.questions)
        logits, wanted, _ = self.reader(batch, self.vectors(chosen))
        loss = F.cross_entropy(logits, wanted)
        torch.autograd.backward(loss)
        self.state.apply(self.rate())
        return float(loss.detach())

    def run(self) -> None:
        while self.state.step < self.args.steps:
            step = self.state.step
            scenes = Scenes(random.Random(f"vectors:{self.args.seed}:{step}"))
            self.talks.rng.seed(f"talks:{self.args.seed}:{step}")
            start = time.time()
            loss = sum(self.one_step(scenes) for _ in range(self.args.every)) / self.args.every
            self.state.save()
            with self.state.averaged():
                answers = self.held_out(60, lambda chosen, _: self.vectors(chosen))
            print(
                f"{time.strftime('%H:%M:%S')} step {self.state.step} loss {loss:.3f} "
                f"{(time.time() - start) / self.args.every:.2f} s/step {answers}",
                flush=True,
            )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m plumbline_training vectors", description=__doc__)
    parser.add_argument("--run", type=Path, default=Path(".pocket"), help="folder of the checkpoint")
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--batch", type=int, default=8, help="scenes of a step")
    parser.add_argument("--questions", type=int, default=6, help="questions about each scene")
    parser.add_argument("--every", type=int, default=50, help="steps between two checkpoints")
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    args.run.mkdir(parents=True, exist_ok=True)
    VectorTrainer(args).run()


if __name__ == "__main__":
    main()
