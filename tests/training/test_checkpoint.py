"""Laws of the file that a training run is kept in.

* A run that is stopped and read again goes on as if it had not been stopped.
* The mean of the weights lies between those of the steps, and leaves the weights as they are.
* A step takes a share of the full learning rates, also after a restart.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from plumbline_training.checkpoint import TrainingState, mean_weights


def make_run(path: Path, seed: int = 1) -> TrainingState:
    torch.manual_seed(seed)
    module = nn.Linear(3, 2)
    optimizers = [torch.optim.AdamW([module.weight], lr=0.1), torch.optim.SGD([module.bias], lr=0.01)]
    return TrainingState(path, module, optimizers, keep=0.9, position={"pool": 7})


def steps(run: TrainingState, numbers: range) -> None:
    for number in numbers:
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(number))
        run.module(x).square().mean().backward()
        run.apply(1 / (1 + number))


def test_a_stopped_run_goes_on_as_if_it_had_not_been_stopped(tmp_path: Path) -> None:
    whole = make_run(tmp_path / "whole.pt")
    steps(whole, range(6))
    first = make_run(tmp_path / "run.pt")
    steps(first, range(3))
    first.position["pool"] = 8
    first.save()
    second = make_run(tmp_path / "run.pt", seed=2)
    assert (second.step, second.position) == (3, {"pool": 8})
    steps(second, range(3, 6))
    for name, value in whole.module.named_parameters():
        assert torch.equal(value, second.module.get_parameter(name))
        assert torch.equal(whole.average[name], second.average[name])
    assert [p.name for p in tmp_path.iterdir()] == ["run.pt"]


def test_the_mean_is_borrowed_and_given_back(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run.pt")
    steps(run, range(3))
    run.save()
    before = {name: value.detach().clone() for name, value in run.module.named_parameters()}
    with run.averaged():
        for name, value in run.module.named_parameters():
            assert torch.equal(value, run.average[name])
            assert torch.equal(value, mean_weights(run.path)[name])
            assert not torch.equal(value, before[name])
    assert all(torch.equal(value, before[name]) for name, value in run.module.named_parameters())


def test_every_learning_rate_has_the_same_share(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run.pt")
    steps(run, range(2))
    run.save()
    again = make_run(tmp_path / "run.pt")
    steps(again, range(3, 4))
    assert [each.param_groups[0]["lr"] for each in again.optimizers] == pytest.approx([0.1 / 4, 0.01 / 4])
