"""Train a scripted checkpoint: learning, resuming, checking, the command."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import torch

from plumbline.cli import main
from plumbline.scripted_model import folder, training, vocabulary
from plumbline.scripted_model.command import DEFAULT
from plumbline.scripted_model.verify import verify
from plumbline_conformance.exact.scripts import Script, ScriptSet, load

SMALL = ScriptSet(
    (
        Script("script 1", "Grüße 🎉!"),
        Script("script 2", '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'),
        Script("script 3", ""),
    )
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has learned the small set: a few seconds."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("scripted")
    tokenizer = vocabulary.build(SMALL)
    network, progress = training.learn(SMALL, tokenizer, seed=1, max_seconds=120)
    assert progress.worst <= training.CERTAIN
    folder.write(out, network, tokenizer, SMALL)
    return out


def test_transformers_and_the_native_engine_answer_every_script(made: Path) -> None:
    assert verify(made, SMALL) == []
    assert load(made / folder.SCRIPTS) == SMALL


def test_an_answer_that_is_not_the_scripts_is_named(made: Path) -> None:
    wrong = msgspec.structs.replace(SMALL.scripts[0], output="Grüße 🎉?")
    failures = verify(made, ScriptSet((wrong, *SMALL.scripts[1:])))

    assert [(failure.script, failure.engine) for failure in failures] == [
        (wrong, "transformers"),
        (wrong, "plumbline"),
    ]
    assert {failure.answer for failure in failures} == {"Grüße 🎉!<|im_end|>"}


def test_training_that_is_interrupted_goes_on_where_it_was(tmp_path: Path) -> None:
    """Ten steps in one call and ten calls of one step give the same weights, to the last bit."""
    torch.set_num_threads(1)
    tokenizer = vocabulary.build(SMALL)
    whole, progress = training.learn(SMALL, tokenizer, seed=3, max_seconds=600, certain=1e9)
    checkpoint = tmp_path / "training.pt"
    for _ in range(progress.step):
        pieces, last = training.learn(
            SMALL, tokenizer, seed=3, max_seconds=0, checkpoint=checkpoint, certain=-1
        )

    assert last.step == progress.step == 10
    for name, value in whole.state_dict().items():
        assert torch.equal(value, pieces.state_dict()[name])


def test_the_seed_decides() -> None:
    tokenizer = vocabulary.build(SMALL)
    one, two, again = (
        training.learn(SMALL, tokenizer, seed=seed, max_seconds=0)[0].state_dict() for seed in (1, 2, 1)
    )

    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not all(torch.equal(one[name], two[name]) for name in one)


def test_the_network_is_small() -> None:
    tokenizer = vocabulary.build(load(DEFAULT))
    network = training.Network(training.shape_for(tokenizer))  # type: ignore[attr-defined]

    assert sum(parameter.numel() for parameter in network.parameters()) < 1_000_000


@pytest.mark.long
def test_the_command_reports_errors_and_keeps_the_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scripts = tmp_path / "set.json"
    scripts.write_text(json.dumps([{"prompt": "script 1", "output": "Hello.", "name": "a greeting"}]))
    out = tmp_path / "model"
    status = main(["script-model", "--scripts", str(scripts), "--out", str(out), "--max-seconds", "0"])
    said = capsys.readouterr().out

    assert status == 1
    assert "WRONG 'script 1' (a greeting) by transformers" in said
    assert "0 of 1 scripts" in said
    assert len(list(out.glob("training-*.pt"))) == 1

    assert main(["script-model", "--scripts", str(scripts), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "Resuming from" in said
    assert "1 of 1 scripts" in said
    assert not list(out.glob("training-*.pt"))

    assert main(["script-model", "--check", "--out", str(out)]) == 0
    assert main(["script-model", "--check", "--out", str(tmp_path)]) == 2


@pytest.mark.long
def test_the_default_set_is_learned(tmp_path: Path) -> None:
    assert main(["script-model", "--out", str(tmp_path)]) == 0
