"""Layouts that nodes cannot hold are refused with the numbers; those that they can hold are not."""

from __future__ import annotations

import pytest

from slurmtrain.config.parallel import AXES
from slurmtrain.errors import PlacementError
from slurmtrain.fabric.layout import domain_ranks, layout, stages

BLOCKS_OF_2 = {"gpus_per_node": 4, "nvlink_domain": "block", "block_nodes": 2}


@pytest.mark.parametrize(
    "fields",
    [
        {"nodes": 2, "gpus_per_node": 8, "tp": 8, "dp": 2},
        {"nodes": 1, "gpus_per_node": 6, "tp": 3, "pp": 2},
        {"nodes": 3, "gpus_per_node": 8, "tp": 4, "dp": 6},
        BLOCKS_OF_2 | {"nodes": 4, "tp": 8, "dp": 2},
        {"nodes": 18, "gpus_per_node": 4, "tp": 72, "nvlink_domain": "block", "block_nodes": 18},
        {"nodes": 2, "gpus_per_node": 4, "tp": 2, "dp": 4, "nvlink_domain": "pairs"},
        {"nodes": 2, "gpus_per_node": 4, "tp": 2, "cp": 2, "dp": 2, "order": ("cp", "tp", "ep", "dp", "pp")},
        {"nodes": 2, "gpus_per_node": 4, "tp": 1, "dp": 8, "ep": 4},
    ],
)
def test_what_fits_is_taken(fields):
    assert layout(**fields).world == fields["nodes"] * fields["gpus_per_node"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (BLOCKS_OF_2 | {"nodes": 4, "tp": 16}, "blocks of 2 nodes x 4 GPUs.* use 1, 2, 4 or 8"),
        ({"nodes": 2, "gpus_per_node": 4, "tp": 8}, "tp = 8 .* domains of 4 GPUs .* use 1, 2 or 4"),
        ({"nodes": 3, "gpus_per_node": 4, "tp": 3, "dp": 4}, "tp = 3 .* use 1, 2 or 4"),
        ({"nodes": 2, "gpus_per_node": 4, "tp": 4, "dp": 2, "nvlink_domain": "pairs"}, "tp = 4 .* pairs of GPUs.* use 1 or 2"),
        (
            {"nodes": 4, "gpus_per_node": 4, "tp": 16, "nvlink_domain": "block", "block_nodes": 2},
            "blocks of 2 nodes x 4 GPUs.* 1, 2, 4 or 8",
        ),
        ({"nodes": 2, "gpus_per_node": 4, "tp": 2, "dp": 4, "order": ("dp", "tp", "cp", "ep", "pp")}, r"ranks \[0, 4\].*put tp first"),
        ({"nodes": 2, "gpus_per_node": 4, "tp": 2, "dp": 2}, "tp 2 x cp 1 x dp 2 x pp 1 = 4 ranks, 2 nodes x 4 GPUs = 8"),
        ({"nodes": 1, "gpus_per_node": 4, "dp": 4, "ep": 3}, "ep = 3 must divide dp = 4: use 1, 2 or 4"),
        ({"nodes": 1, "gpus_per_node": 4, "dp": 4, "order": ("tp", "dp")}, "each of tp, cp, ep, dp, pp once"),
        ({"nodes": 1, "gpus_per_node": 4, "dp": 4, "order": (*AXES, "tp")}, "each of tp"),
    ],
)
def test_what_does_not_fit_is_refused_with_numbers(fields, words):
    with pytest.raises(PlacementError, match=words):
        layout(**fields)


def test_stages_are_contiguous_even_and_whole():
    assert stages(6, 3) == ((0, 1), (2, 3), (4, 5))
    with pytest.raises(PlacementError, match=r"pp = 4 does not cut 6 layers .* use 1, 2, 3 or 6"):
        stages(6, 4)


def test_domain_sizes():
    block = layout(nodes=2, gpus_per_node=4, dp=8, nvlink_domain="block", block_nodes=2)
    assert (domain_ranks(block), domain_ranks(layout(nodes=1, gpus_per_node=8, dp=8))) == (8, 8)
