"""What the trainer is measured against: the simplest correct program for each kind of parallelism, over transformers' Llama.

Each `make_*` gives a function that trains one step on the global batch [B, T + 1] and returns the mean loss of this rank's tokens.
All use torch's AdamW (foreach) and clip the global norm to 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

from slurmtrain.config.model import ModelConfig

Train = Callable[[Tensor], float]
BETAS, LR, DECAY, CLIP = (0.9, 0.95), 1e-4, 0.1, 1.0


def llama(model: ModelConfig, attention: str = "sdpa") -> LlamaForCausalLM:
    """transformers' Llama of the same shape."""
    config = LlamaConfig(
        vocab_size=model.vocab,
        hidden_size=model.hidden,
        intermediate_size=model.ffn,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        head_dim=model.head_dim,
        rms_norm_eps=model.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": model.rope_theta},
        tie_word_embeddings=model.tied_embeddings,
        attn_implementation=attention,
        use_cache=False,
    )
    torch.manual_seed(1)
    return LlamaForCausalLM(config)


def optimizer_of(parameters: Iterable[nn.Parameter]) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, lr=LR, betas=BETAS, weight_decay=DECAY, foreach=True)


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def make_one_process(model: ModelConfig, *, bf16: bool) -> Train:
    """A plain loop; bf16 by autocast, weights in fp32."""
    module = llama(model)
    optimizer = optimizer_of(module.parameters())

    def autocast() -> AbstractContextManager[object]:
        return torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext()

    def train(tokens: Tensor) -> float:
        with autocast():
            logits = module(input_ids=tokens[:, :-1]).logits
        loss = mean_loss(logits, tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return train


def make_ddp(model: ModelConfig) -> Train:
    """torch's DistributedDataParallel."""
    return on_shares(nn.parallel.DistributedDataParallel(llama(model)))


def make_fsdp(model: ModelConfig) -> Train:
    """torch's fully_shard on each layer and the whole."""
    from torch.distributed.fsdp import fully_shard

    module = llama(model)
    for part in (*module.model.layers, module):
        fully_shard(part)
    return on_shares(module)


def on_shares(module: nn.Module) -> Train:
    """Each rank trains on its share of the batch; the module itself sums gradients."""
    optimizer = optimizer_of(module.parameters())

    def train(tokens: Tensor) -> float:
        share = tokens.chunk(dist.get_world_size())[dist.get_rank()]
        loss = mean_loss(module(input_ids=share[:, :-1]).logits, share[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return train


def make_dtensor_tp(model: ModelConfig) -> Train:
    """torch's parallelize_module: column, row, sequence parallel norms, loss parallel over the vocabulary."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        loss_parallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    module = llama(model)
    whole: dict[str, object] = {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "model.norm": SequenceParallel(),
        "lm_head": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
    }
    parallelize_module(module, mesh, whole)
    gather = {"input_kwarg_layouts": {"hidden_states": Shard(1)}, "desired_input_kwarg_layouts": {"hidden_states": Replicate()}}
    layer_plan = {
        "input_layernorm": SequenceParallel(),
        "self_attn": PrepareModuleInput(**gather),
        **{f"self_attn.{name}": ColwiseParallel() for name in ("q_proj", "k_proj", "v_proj")},
        "self_attn.o_proj": RowwiseParallel(output_layouts=Shard(1)),
        "post_attention_layernorm": SequenceParallel(),
        "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        **{f"mlp.{name}": ColwiseParallel() for name in ("gate_proj", "up_proj")},
        "mlp.down_proj": RowwiseParallel(output_layouts=Shard(1)),
    }
    for layer in module.model.layers:
        parallelize_module(layer, mesh, layer_plan)
    optimizer = optimizer_of(module.parameters())

    def train(tokens: Tensor) -> float:
        place = torch.arange(tokens.shape[1] - 1)[None]
        with loss_parallel():
            logits = module(input_ids=tokens[:, :-1], position_ids=place).logits
            loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.full_tensor()) if hasattr(loss, "full_tensor") else loss.item()

    return train


class Layers(nn.Module):
    """Some of transformers' layers; the first stage embeds, the last gives logits."""

    def __init__(self, whole: LlamaForCausalLM, layers: range, *, first: bool, last: bool) -> None:
        super().__init__()
        self.embed = whole.model.embed_tokens if first else None
        self.layers = nn.ModuleList(whole.model.layers[i] for i in layers)
        self.norm, self.head = (whole.model.norm, whole.lm_head) if last else (None, None)
        self.rotary = whole.model.rotary_emb

    def forward(self, x: Tensor) -> Tensor:
        if self.embed is not None:
            x = self.embed(x)
        place = self.rotary(x, torch.arange(x.shape[1])[None])
        for layer in self.layers:
            x = layer(x, position_embeddings=place, attention_mask=None)
        return x if self.head is None else self.head(self.norm(x))


def make_bare_pipeline(model: ModelConfig, microbatches: int) -> Train:
    """torch.distributed.pipelining, 1F1B, even stages."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, size = dist.get_rank(), dist.get_world_size()
    each, first, last = model.layers // size, rank == 0, rank == size - 1
    module = Layers(llama(model), range(rank * each, (rank + 1) * each), first=first, last=last)
    stage = PipelineStage(module, rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, microbatches, loss_fn=mean_loss)
    optimizer = optimizer_of(module.parameters())

    def train(tokens: Tensor) -> float:
        losses: list[Tensor] = []
        inputs = (tokens[:, :-1].contiguous(),) if first else ()
        target = {"target": tokens[:, 1:].contiguous(), "losses": losses} if last else {}
        schedule.step(*inputs, return_outputs=False, **target)
        clip_over_ranks(module.parameters())
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack(losses).mean().item() if last else 0.0

    return train


def clip_over_ranks(parameters: Iterable[nn.Parameter]) -> None:
    """Each rank has other parameters: the norm is over all."""
    grads = [p.grad for p in parameters if p.grad is not None]
    square = torch.stack([grad.square().sum() for grad in grads]).sum()
    dist.all_reduce(square)
    torch._foreach_mul_(grads, min(1.0, CLIP / (math.sqrt(square.item()) + 1e-6)))


class Shift(torch.autograd.Function):
    """Tensors to the next rank, those of the one before in return."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:  # type: ignore[override]
        return shifted(x, 1)

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:  # type: ignore[override]
        return shifted(grad, -1)


def shifted(x: Tensor, by: int) -> Tensor:
    rank, size = dist.get_rank(), dist.get_world_size()
    out = torch.empty(x.shape, dtype=x.dtype)
    ops = [dist.P2POp(dist.isend, x.contiguous(), (rank + by) % size), dist.P2POp(dist.irecv, out, (rank - by) % size)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return out


def plain_ring(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: object, scaling: float, **__: object
) -> tuple[Tensor, None]:
    """Ring attention in a plain loop: contiguous pieces, a block of scores at a time, sums kept online (Liu et al. 2023, section 3)."""
    rank, size, length = dist.get_rank(), dist.get_world_size(), query.shape[2]
    groups = query.shape[1] // key.shape[1]
    here = torch.arange(length)
    top = torch.full(query.shape[:3], -torch.inf)
    total, out = torch.zeros(query.shape[:3]), torch.zeros_like(query)
    for step in range(size):
        behind = rank * length + here[:, None] < (rank - step) % size * length + here[None, :]
        k, v = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        scores = (query @ k.transpose(-1, -2) * scaling).masked_fill(behind, -torch.inf)
        high = torch.maximum(top, scores.amax(-1))
        weights, decay = (scores - high[..., None]).exp(), (top - high).exp()
        total = total * decay + weights.sum(-1)
        out = out * decay[..., None] + weights @ v
        top = high
        if step < size - 1:
            key, value = Shift.apply(key), Shift.apply(value)
    return (out / total[..., None]).transpose(1, 2), None


def make_plain_ring(model: ModelConfig) -> Train:
    """Context parallelism by hand: transformers' Llama with the ring as its attention, gradients summed at the end."""
    AttentionInterface.register("plain_ring", plain_ring)
    module = llama(model, "plain_ring")
    optimizer = optimizer_of(module.parameters())
    rank, size = dist.get_rank(), dist.get_world_size()

    def train(tokens: Tensor) -> float:
        inputs, labels = tokens[:, :-1].chunk(size, 1)[rank], tokens[:, 1:].chunk(size, 1)[rank]
        place = torch.arange(rank * inputs.shape[1], (rank + 1) * inputs.shape[1])[None]
        loss = mean_loss(module(input_ids=inputs, position_ids=place).logits, labels) / size
        loss.backward()
        for parameter in module.parameters():
            dist.all_reduce(parameter.grad)
        torch.nn.utils.clip_grad_norm_(module.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item() * size

    return train
