"""RUN@STEP, and what it means."""

from __future__ import annotations

import pytest

from slurmtrain.cli.ckpt_names import run_at_step
from slurmtrain.errors import UserError


@pytest.mark.parametrize(
    "text, means",
    [
        ("llama", ("llama", None)),
        ("llama@0", ("llama", 0)),
        ("4711@20", ("4711", 20)),
        ("runs/llama@00000300", ("runs/llama", 300)),
        ("me@home/llama", ("me@home/llama", None)),
        ("me@home/llama@9", ("me@home/llama", 9)),
        ("a@b@9", ("a@b", 9)),
        ("copy@home/", ("copy@home/", None)),
    ],
)
def test_what_a_name_means(text, means):
    assert run_at_step(text) == means


@pytest.mark.parametrize(
    "text", ["", "@", "@5", "llama@", "llama@five", "llama@-1", "llama@5.0", "llama@1e3", "llama@५", "llama@ 5", f"llama@{'9' * 19}"]
)
def test_nonsense_is_told(text):
    with pytest.raises(UserError, match="RUN@STEP"):
        run_at_step(text)
