"""The moving average against its closed form."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from slurmtrain.parallel.parameters import LocalParameter
from slurmtrain.train.ema import Average


def parameters(*values):
    held = [SimpleNamespace(value=torch.full((3,), value), grad=None) for value in values]
    return [LocalParameter(str(i), one, (), owned=True, decays=False) for i, one in enumerate(held)]


def test_is_the_weighted_sum_of_all_values_so_far():
    chosen = parameters(1.0, -2.0)
    average = Average(chosen, 0.9)
    for step in range(1, 6):
        for parameter in chosen:
            parameter.tensor.add_(step)
        average.update()
    for parameter, first in zip(chosen, (1.0, -2.0), strict=True):
        seen = [first + step * (step + 1) / 2 for step in range(1, 6)]
        expected = 0.9**5 * first + sum(0.1 * 0.9 ** (4 - i) * value for i, value in enumerate(seen))
        assert average.values[int(parameter.name)].tolist() == pytest.approx([expected] * 3, rel=1e-6)


def test_restart_begins_at_the_values_of_now():
    chosen = parameters(1.0)
    average = Average(chosen, 0.5)
    chosen[0].tensor.fill_(7.0)
    average.restart()
    chosen[0].tensor.fill_(0.0)
    assert average.values[0].tolist() == [7.0] * 3
