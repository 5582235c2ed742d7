"""A model of three tensors in plain torch behind the interface of `parallel.apply.Built`, on one rank or data-parallel over two.

Embedding and head are whole on every rank, `gain` is cut over the ranks as ZeRO cuts it; logits = (embedding[token] * gain) head^T.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn import functional

from slurmtrain.boxes import Box, Part
from slurmtrain.parallel.batch import IGNORED, StepBatch
from slurmtrain.parallel.parameters import LocalParameter

VOCAB, WIDTH, SEQUENCE = 11, 8, 6


@dataclass
class Held:
    value: torch.Tensor
    grad: torch.Tensor


def first_values():
    generator = torch.Generator().manual_seed(3)
    embedding, head = (torch.randn(VOCAB, WIDTH, generator=generator) for _ in "12")
    return {"embedding.weight": embedding, "gain": torch.linspace(0.5, 1.5, WIDTH), "head.weight": head}


def loss_sum_of(weights, tokens_NT, labels_NT):
    logits = (weights["embedding.weight"][tokens_NT] * weights["gain"]) @ weights["head.weight"].T
    return functional.cross_entropy(logits.flatten(0, 1), labels_NT.flatten(), ignore_index=IGNORED, reduction="sum")


def batch_of(step, sequences=4):
    """A global batch in which the number of labels differs from sequence to sequence, and with the step."""
    generator = torch.Generator().manual_seed(50 + step)
    tokens, labels = (torch.randint(VOCAB, (sequences, SEQUENCE), generator=generator) for _ in "12")
    for number in range(sequences):
        labels[number, : (number + step) % SEQUENCE] = IGNORED
    return StepBatch(tokens, labels)


class SmallBuilt:
    """`poison`: (step, rank) to the value that becomes a gradient of this rank's own part of `gain`, in the step counted from 1."""

    counts_loss = True

    def __init__(self, rank=0, size=1, poison=None):
        self.rank, self.size, self.poison, self.step = rank, size, poison or {}, 0
        self.weights = first_values()
        share = WIDTH // size
        self.rows = slice(rank * share, (rank + 1) * share)
        held = {name: self.weights[name] for name in ("embedding.weight", "head.weight")} | {
            "gain": self.weights["gain"][self.rows].clone()
        }
        self.parameters = tuple(self._parameter(name, value) for name, value in held.items())

    def _parameter(self, name, value):
        shape, cut = tuple(self.weights[name].shape), name == "gain"
        box = Box((self.rows.start if cut else 0, *(0 for _ in shape[1:])), tuple(value.shape))
        part = Part(name, shape, box, tuple((0, n) for n in value.shape))
        return LocalParameter(name, Held(value, torch.zeros_like(value)), (part,), owned=cut or self.rank == 0, decays=value.ndim > 1)

    def forward_backward(self, batch, scale):
        self.step += 1
        leaves = {name: value.clone().requires_grad_() for name, value in self.weights.items()}
        loss_sum = loss_sum_of(leaves, batch.tokens_NT, batch.labels_NT)
        (loss_sum * scale).backward()
        for parameter in self.parameters:
            grad = leaves[parameter.name].grad
            if self.size > 1:
                dist.all_reduce(grad)
            parameter.holder.grad = grad[self.rows].clone() if parameter.name == "gain" else grad
        if (self.step, self.rank) in self.poison:
            self.parameters[-1].grad[0] = self.poison[self.step, self.rank]
        return loss_sum.detach().double()

    def valid_tokens(self, batch):
        return batch.valid_tokens()

    def publish(self):
        gain = self.parameters[-1].tensor
        if self.size > 1:
            pieces = [torch.empty_like(gain) for _ in range(self.size)]
            dist.all_gather(pieces, gain)
            gain = torch.cat(pieces)
        self.weights["gain"] = gain.clone()
