"""Ask the exported folder about held-out pictures, through its own processor and transformers' greedy decoding."""

import io
import random
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from plumbline_training.pictures.draw import picture
from plumbline_training.pictures.questions import Asker, PictureQuestion
from plumbline_training.pictures.scene import MOST_OBJECTS, Scenes

TARGETS: dict[str, float | None] = {
    "shape": 0.95,
    "colour": 0.95,
    "count": 0.90,
    "digits": 0.90,
    "several shape": None,
    "several colour": None,
    "several count": None,
    "words": None,
    "position": None,
    "relation": None,
    "present": None,
    "none": None,
    "charts": None,
    "background": None,
    "text colour": None,
    "describe": None,
}
"""The goals of the rows, by topic of the questions."""
LABELS: dict[str, str] = {
    "shape": "Pictures of one kind of shape: which shape",
    "colour": "Pictures of one kind of shape: its color",
    "count": "Pictures of one kind of shape: how many, one to six",
    "several shape": "Pictures of two or three kinds: which shape has a color",
    "several colour": "Pictures of two or three kinds: the color of a shape",
    "several count": "Pictures of two or three kinds: how many, of one or in all",
    "digits": "Pictures: number of one to five digits",
    "words": "Pictures: word of one to six capitals",
    "position": "Pictures: place, of nine",
    "relation": "Pictures: what is left, right, above, below",
    "present": "Pictures: whether a shape is there",
    "none": "Pictures: how many of a shape that is not there",
    "charts": "Pictures: bar charts",
    "background": "Pictures: color of the background",
    "text colour": "Pictures: color of a text",
    "describe": "Pictures: whole description",
}
_KINDS = {"digits": "digits", "words": "word", "charts": "chart"}


@dataclass(frozen=True)
class PictureCase:
    """A picture as a file, and a question about it."""

    file: bytes
    question: PictureQuestion


def cases(topic: str, count: int, seed: int) -> list[PictureCase]:
    """Return held-out cases of a topic; pictures of objects have each number of objects equally often."""
    rng = random.Random(f"{topic}:{seed}")
    scenes = Scenes(rng, "eval")
    found: list[PictureCase] = []
    while len(found) < count:
        if topic == "text colour":
            scene = scenes.of(rng.choice(("word", "digits")))
        elif topic in ("background", "describe"):
            scene = scenes.any()
        elif topic in _KINDS:
            scene = scenes.of(_KINDS[topic])
        else:
            scene = scenes.of("objects", rng.randint(1, MOST_OBJECTS))
        asker = Asker(scene, rng)
        if topic in asker.topics():
            file = io.BytesIO()
            picture(scene, rng).image.save(file, "PNG")
            found.append(PictureCase(file.getvalue(), asker.of(topic)))
    return found


class Looker:
    """Answer questions about pictures with the folder, loaded with transformers."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForImageTextToText, AutoProcessor

        self.processor: Any = AutoProcessor.from_pretrained(folder)
        self.processor.tokenizer.padding_side = "left"
        self.model: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def answers(self, asked: list[PictureCase], batch: int = 24) -> list[str]:
        """Return the answer to each case."""
        found: list[str] = []
        for start in range(0, len(asked), batch):
            some = asked[start : start + batch]
            prompts = [
                self.processor.apply_chat_template(
                    [
                        {
                            "role": "user",
                            "content": [{"type": "image"}, {"type": "text", "text": each.question.text}],
                        }
                    ],
                    add_generation_prompt=True,
                    tokenize=False,
                )
                for each in some
            ]
            images = [[Image.open(io.BytesIO(each.file))] for each in some]
            inputs = self.processor(images=images, text=prompts, return_tensors="pt", padding=True)
            made = self.model.generate(**inputs, do_sample=False, max_new_tokens=60)
            texts = self.processor.tokenizer.batch_decode(made[:, inputs["input_ids"].shape[1] :])
            found += [text.partition("<|im_end|>")[0] for text in texts]
        return found


def evaluate(folder: Path, count: int, seeds: list[int], show: int = 0) -> dict[str, dict[str, Any]]:
    """Return cases, passed and target of each topic; an answer passes if it is the wanted one, word for word."""
    looker = Looker(folder)
    passed: dict[str, list[bool]] = defaultdict(list)
    for topic in TARGETS:
        for seed in seeds:
            asked = cases(topic, count, seed)
            for case, answer in zip(asked, looker.answers(asked), strict=True):
                passed[topic].append(answer == case.question.answer)
                if not passed[topic][-1] and passed[topic].count(False) <= show:
                    print(f"--- {topic}: {case.question} got {answer!r}")
    return {
        topic: {"cases": len(passed[topic]), "passed": sum(passed[topic]), "target": target}
        for topic, target in TARGETS.items()
    }
