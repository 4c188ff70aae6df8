"""Laws of the pictures that the pocket model learns from, and of what is asked about them.

* A scene is on one side of the split; the evaluation never draws one that training draws. Training draws each digit.
* A seed decides a picture, byte for byte.
* Every scene has one known piece for each token of its picture; a piece names a place that the tokenizer fills.
* The vector of a piece is the nearest one to itself, at every place.
* Each stage of training takes steps, and the next stage begins with what it found.
* Pixels of training are those of the processor.
* Questions asked in one batch have the logits that they have alone.
* No text of a client becomes the mark of a picture.
"""

from __future__ import annotations

import argparse
import io
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from plumbline.answer.text.tokenizer import TextTokenizer
from plumbline.pocket import MODEL_DIR
from plumbline_training import tokenizer
from plumbline_training.pictures import evaluate, font, train_eyes, train_tower, train_vectors
from plumbline_training.pictures import model_with_eyes as layout
from plumbline_training.pictures.branch_reader import Reader, branches_right
from plumbline_training.pictures.conversation import Talk, Talks, joined
from plumbline_training.pictures.draw import picture
from plumbline_training.pictures.questions import Asker
from plumbline_training.pictures.scene import Scene, Scenes
from plumbline_training.pictures.slots import PIECES, classes, first_tokens, patches, pieces
from plumbline_training.pictures.train_vectors import Vectors
from plumbline_training.texts.words import Lexicon


def some_scenes(count: int, split: Any = "train", seed: int = 1) -> list[Scene]:
    scenes = Scenes(random.Random(seed), split)
    return [scenes.any() for _ in range(count)]


@pytest.mark.parametrize("split", ["train", "eval"])
def test_scenes_are_on_their_side_of_the_split(split: str) -> None:
    assert {scene.side for scene in some_scenes(200, split)} == {split}


def test_training_draws_every_digit_and_not_the_held_out_colours_of_it() -> None:
    drawn = {split: Scenes(random.Random(1), split) for split in ("train", "eval")}
    found = {split: [scenes.of("digits") for _ in range(400)] for split, scenes in drawn.items()}
    assert {scene.text for scene in found["train"] if len(scene.text) == 1} == set(font.DIGITS)
    seen = {(scene.text, scene.text_colour, scene.ground) for scene in found["train"]}
    short = [scene for scene in found["eval"] if len(scene.text) == 1]
    assert len(short) > 50
    assert not seen & {(scene.text, scene.text_colour, scene.ground) for scene in short}


@pytest.mark.parametrize("total", range(1, 7))
def test_a_scene_has_as_many_objects_as_asked_for(total: int) -> None:
    scenes = Scenes(random.Random(total))
    for _ in range(20):
        scene = scenes.of("objects", total)
        assert sum(len(group.cells) for group in scene.groups) == total
        assert len({group.shape for group in scene.groups}) == len(scene.groups)
        assert scene.ground not in {group.colour for group in scene.groups}


def test_a_seed_decides_a_picture() -> None:
    for scene in some_scenes(10):
        one, two = (picture(scene, random.Random(5)).image for _ in range(2))
        assert one.tobytes() == two.tobytes()
        assert one.tobytes() != picture(scene, random.Random(6)).image.tobytes()


def test_what_is_drawn_is_inside_of_the_picture() -> None:
    rng = random.Random(2)
    for scene in some_scenes(100):
        for _, left, top, right, bottom in picture(scene, rng).places:
            assert -0.05 <= left < right <= 1.05
            assert -0.05 <= top < bottom <= 1.05


@pytest.mark.parametrize("character", font.CHARACTERS)
def test_every_character_has_strokes_in_its_box(character: str) -> None:
    parts, width = font.strokes(character)
    assert all(len(part) > 1 for part in parts)
    points = [point for part in parts for point in part]
    assert all(-0.01 <= x <= width + 0.01 and -0.2 <= y <= 6.4 for x, y in points)
    assert not any(font.strokes(other) == (parts, width) for other in font.CHARACTERS if other != character)


def test_every_token_of_a_picture_has_a_known_piece() -> None:
    for scene in some_scenes(200):
        found = pieces(scene)
        assert len(found) == layout.TOKENS
        assert set(found) <= set(PIECES)
        assert len(patches(picture(scene, random.Random(1)), 8)) == layout.TOKENS
    assert len(first_tokens(tokenizer.load())) == len(PIECES)


def test_answers_about_a_known_scene() -> None:
    scene = next(s for s in some_scenes(500) if len(s.groups) == 1 and len(s.groups[0].cells) == 1)
    asker = Asker(scene, random.Random(3))
    (group,) = scene.groups
    answers = {topic: {asker.of(topic).answer for _ in range(40)} for topic in asker.topics()}
    assert answers["shape"] == {group.shape}
    assert answers["colour"] == {group.colour}
    assert answers["count"] == {"1"}
    assert answers["none"] == {"0"}
    assert answers["present"] == {"yes", "no"}
    assert answers["background"] == {scene.ground}
    assert all(group.shape in answer for answer in answers["describe"])


def test_cases_of_the_evaluation_are_held_out_and_files() -> None:
    for topic in evaluate.TARGETS:
        for case in evaluate.cases(topic, 2, seed=4):
            assert case.question.topic == topic
            assert Image.open(io.BytesIO(case.file)).format == "PNG"


def test_the_vector_of_a_piece_is_the_nearest_one() -> None:
    torch.manual_seed(1)
    scenes = some_scenes(20)
    tok = tokenizer.load()
    vectors = Vectors(torch.randn(tok.get_vocab_size(), 16), tok)
    # Pieces that begin as the same token of the text are apart once they are trained.
    for value in vectors.parameters():
        nn.init.normal_(value)
    found = vectors.nearness(vectors(scenes), scenes).argmax(-1)
    assert found.tolist() == [classes(scene) for scene in scenes]


def test_every_stage_of_the_eyes_takes_steps(tmp_path: Path) -> None:
    args = argparse.Namespace(
        run=tmp_path, seed=1, steps=2, batch=1, questions=1, further=1, lr=1e-3, local_steps=1
    )
    vectors = train_vectors.VectorTrainer(args)
    assert vectors.one_step(Scenes(random.Random(1))) > 0
    vectors.state.save()
    tower = train_tower.TowerTrainer(args)
    assert torch.equal(tower.vectors.place, vectors.state.average["place"])
    tower.local_step(*train_tower.collages(random.Random(1), 1))
    assert min(tower.one_step(*train_tower.batch(Scenes(random.Random(1)), 1))) > 0
    tower.state.save()
    eyes = train_eyes.EyesTrainer(args)
    before = {name: value.detach().clone() for name, value in eyes.eyes.named_parameters()}
    assert all(torch.equal(value, tower.state.average[name]) for name, value in before.items())
    assert min(eyes.one_step(Scenes(random.Random(2)))) > 0
    assert not torch.equal(eyes.eyes.projector.linear_1.weight, before["projector.linear_1.weight"])
    assert train_tower.TowerTrainer(args).state.step == 2


def make_talks() -> Talks:
    tok = tokenizer.load()
    image = tokenizer.image_token(tok)
    return Talks(tok, Lexicon(random.Random(2), pieces=tokenizer.letter_runs(tok)), image)


def alone(talk: Talk, branch: int) -> Talk:
    """The beginning of a conversation with one of its branches."""
    kept = [i for i, b in enumerate(talk.branch) if b in (0, branch)]
    return Talk(
        [talk.ids[i] for i in kept],
        [min(talk.branch[i], 1) for i in kept],
        list(range(len(kept))),
        [talk.wanted[i] for i in kept],
        [talk.topics[branch - 1]],
    )


def test_questions_in_one_batch_have_the_logits_that_they_have_alone() -> None:
    talks = make_talks()
    reader = Reader(MODEL_DIR, talks.image_token)
    vectors = torch.randn(2, layout.TOKENS, 256, generator=torch.Generator().manual_seed(1)) * 0.2
    made = [talks.talk(scene, 3) for scene in some_scenes(2)]
    with torch.inference_mode():
        together, _, where = reader(joined(made), vectors)
        for row in range(2):
            here = where[:row].sum(), where[: row + 1].sum()
            rest = together[here[0] : here[1]]
            for branch in range(1, 4):
                one, _, _ = reader(joined([alone(made[row], branch)]), vectors[row : row + 1])
                torch.testing.assert_close(rest[: len(one)], one, atol=1e-3, rtol=1e-3)
                rest = rest[len(one) :]
            assert not len(rest)


def test_a_branch_is_right_if_all_of_its_tokens_are() -> None:
    talks = make_talks()
    batch = joined([talks.talk(scene, 3) for scene in some_scenes(2)])
    where = batch.wanted[:, 1:]
    good = torch.ones(int(where.sum()), dtype=torch.bool)
    assert branches_right(batch, good, where).all()
    good[0] = False
    assert branches_right(batch, good, where).tolist() == [[False, True, True], [True, True, True]]


def test_no_text_becomes_the_mark_of_a_picture() -> None:
    tok = TextTokenizer.from_folder(MODEL_DIR)
    image = tok.added[tokenizer.IMAGE]
    assert image in tok.special_ids
    for text in (tokenizer.IMAGE, f"a{tokenizer.IMAGE}b", "ÿ", "\u00ff\U0010ffff", "<|image|>" * 3):
        assert image not in tok.encode_text(text)
        assert tok.decode(tok.encode_text(text)) == text
    assert tokenizer.load().get_vocab_size() == tokenizer.VOCAB_SIZE
