"""Run the text model on prompts with the vectors of pictures, branch by branch; its own weights stay as they are."""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline.pocket.folder import text_weights
from plumbline.pocket.network import Network, PocketShape, rotary_tables
from plumbline_training.pictures.conversation import TalkBatch


class Reader:
    """The frozen text model.

    Args:
        folder: of the model.
        image_token: the token in the place of each vector of a picture.
    """

    def __init__(self, folder: Path, image_token: int) -> None:
        self.network = Network(PocketShape(), dtype=torch.float32)
        self.network.load_state_dict({n: w.float() for n, w in text_weights(folder).items()}, strict=True)
        self.network.requires_grad_(False)
        self.image_token = image_token
        self.embeddings: Tensor = self.network.model.embed_tokens.weight

    def __call__(self, talks: TalkBatch, vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits of wanted tokens, these tokens, and where they are.

        Args:
            talks: the conversations.
            vectors: of their pictures, [talks, tokens of a picture, width].
        """
        x = self.embeddings[talks.ids]
        x = x.masked_scatter((talks.ids == self.image_token)[..., None], vectors)
        cos, sin = rotary_tables(self.network.shape, int(talks.positions.max()) + 1, torch.float32)
        cos, sin = cos[talks.positions][:, None], sin[talks.positions][:, None]
        mask = torch.where(talks.mask, 0.0, -1e9)[:, None]
        for layer in self.network.model.layers:
            x = layer(x, cos, sin, mask)
        wanted = talks.wanted[:, 1:]
        logits = F.linear(self.network.model.norm(x)[:, :-1][wanted], self.embeddings)
        return logits, talks.ids[:, 1:][wanted], wanted


def branches_right(talks: TalkBatch, good: Tensor, wanted: Tensor) -> Tensor:
    """Return whether every wanted token of a branch is right, bool [talks, branches].

    Args:
        talks: the conversations.
        good: whether a wanted token is right, in the order of `wanted`.
        wanted: where the wanted tokens are, bool [talks, tokens - 1].
    """
    wrong = torch.zeros(wanted.shape, dtype=torch.long)
    wrong[wanted] = (~good).long()
    count = int(talks.branch.max()) + 1
    sums = torch.zeros(len(wrong), count, dtype=torch.long)
    sums.scatter_add_(1, talks.branch[:, 1:].clamp(min=0), wrong)
    return sums[:, 1:] == 0
