"""Device of a rank: never a silent fallback, never two ranks on one GPU."""

from __future__ import annotations

import pytest

from slurmtrain.errors import ConfigError
from slurmtrain.runtime.device import check_distinct, gpu_index


@pytest.mark.parametrize(("visible", "local_rank", "local_size", "index"), [(8, 5, 8, 5), (1, 5, 8, 0), (1, 0, 1, 0), (2, 1, 2, 1)])
def test_local_rank_among_the_visible_ones_or_the_only_one(visible, local_rank, local_size, index):
    assert gpu_index(visible, local_rank, local_size, node="n1") == index


@pytest.mark.parametrize(
    ("visible", "words"),
    [(0, "no GPU can be used on n1.*CUDA_VISIBLE_DEVICES='3'"), (4, "4 GPUs are visible on n1 to 8 ranks"), (16, "16 GPUs")],
)
def test_any_other_count_is_a_configuration_error(visible, words):
    with pytest.raises(ConfigError, match=words):
        gpu_index(visible, 0, 8, node="n1", seen="3")


def test_two_ranks_of_a_node_on_one_gpu_are_refused():
    check_distinct([("n1", "GPU-a"), ("n1", "GPU-b"), ("n2", "GPU-a")])
    with pytest.raises(ConfigError, match="several ranks of n2 see the same single GPU"):
        check_distinct([("n1", "GPU-a"), ("n2", "GPU-c"), ("n2", "GPU-c")])
