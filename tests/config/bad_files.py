"""Every kind of bad job, site and policy file, with what its one line must say. Also used by the tests of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

GOOD_JOB = """\
[model]
preset = "tiny"

[data]
path = "tokens"

[training]
steps = 100
sequence_length = 64
global_batch = 8

[optimizer]
lr = 1e-3

[parallel]
tp = 2
pp = 2

[slurm]
nodes = 2
"""

GOOD_SITE = """\
description = "four ranks a node"
device = "cpu"

[slurm]
stop_notice_s = 60

[node]
gpus = 4
"""

SHAPE = "layers = 4\nhidden = 64\nheads = 4\nkv_heads = 2\nffn = 192\nvocab = 320"


@dataclass(frozen=True)
class BadFile:
    """One mistake. `key`: the dotted key of the error; `says`: words of its line that help."""

    name: str
    kind: Literal["job", "site", "policy"]
    content: bytes
    key: str
    says: str
    sets: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> tuple[Path, Path, Path]:
        """The job, site and policy file of this case; the two that are not its own are good ones (no policy: no file)."""
        paths = {"job": folder / "job.toml", "site": folder / "mysite.toml", "policy": folder / "policy.toml"}
        paths["job"].write_text(GOOD_JOB)
        paths["site"].write_text(GOOD_SITE)
        paths[self.kind].write_bytes(self.content)
        return paths["job"], paths["site"], paths["policy"]


def _edit(good: str, old: str, new: str) -> bytes:
    assert good.count(old) == 1, old
    return good.replace(old, new).encode()


def _job(name: str, old: str, new: str, key: str, says: str, **more: Any) -> BadFile:
    return BadFile(name, "job", _edit(GOOD_JOB, old, new), key, says, **more)


def _set(name: str, text: str, key: str, says: str) -> BadFile:
    return BadFile(name, "job", GOOD_JOB.encode(), key, says, sets=(text,))


def _site(name: str, old: str, new: str, key: str, says: str) -> BadFile:
    return BadFile(name, "site", _edit(GOOD_SITE, old, new), key, says)


def _policy(name: str, text: str, key: str, says: str) -> BadFile:
    return BadFile(name, "policy", text.encode(), key, says)


JOB = [
    BadFile("not toml", "job", b"[model\npreset = 1", "", "line 1, column 7"),
    BadFile("cut short", "job", b'[model]\npreset = "ti', "", "not TOML at its end"),
    BadFile("binary", "job", b"\x7fELF\x02\x01\xff\xfe", "", "is not text (byte 6 is not UTF-8)"),
    BadFile("nested too deeply", "job", b"a = " + b"[" * 100_000, "", "nested too deeply"),
    BadFile("huge", "job", b"#" * (2 << 20), "", "too large for a job file (2097152 bytes)"),
    BadFile("same key twice", "job", GOOD_JOB.encode() + b"nodes = 3\n", "", "line 21"),
    BadFile(
        "empty",
        "job",
        b"",
        "model",
        "missing tables: [model] with layers, hidden, heads, kv_heads, ffn, vocab; [data] with path; [training]",
    ),
    _job("misspelt table", "[training]", "[trainning]", "trainning", "unknown key 'trainning'; did you mean 'training'?"),
    _job("misspelt key", "steps = 100", "stepz = 100", "training.stepz", "unknown key 'training.stepz'; did you mean 'training.steps'?"),
    _job("dashes", "global_batch", "global-batch", "training.global-batch", "did you mean 'training.global_batch'?"),
    _job("another table's key", "steps = 100", "steps = 100\nlr = 1e-3", "training.lr", "did you mean 'optimizer.lr'?"),
    _job("another trainer's name", "lr = 1e-3", "learning_rate = 1e-3", "optimizer.learning_rate", "did you mean 'optimizer.lr'?"),
    _job(
        "key of no use",
        "tp = 2",
        "tp = 2\nfrobnicate = 1",
        "parallel.frobnicate",
        "unknown key 'parallel.frobnicate'; [parallel] has tp, pp, cp, ep, dp, dp_mode, dp_shard, cp_mode, schedule, vp, stages, order",
    ),
    _job("strange key", "tp = 2", '"a\\nb" = 1\ntp = 2', "parallel.'a\\nb'", "unknown key"),
    _job("missing key", "steps = 100\n", "", "training.steps", "missing key: training.steps"),
    _job(
        "missing shape",
        'preset = "tiny"',
        "layers = 4",
        "model.hidden",
        "missing keys: model.hidden, model.heads, model.kv_heads, model.ffn, model.vocab",
    ),
    _job("no table", '[model]\npreset = "tiny"\n', "model = 3\n", "model", "must be a table: [model]"),
    _job("unknown preset", '"tiny"', '"llama3-8"', "model.preset", "did you mean 'llama3-8b'"),
    _job("preset of no kin", '"tiny"', '"qqq"', "model.preset", "there are: tiny, small, gpt2"),
    _job("text for a number", "steps = 100", 'steps = "100"', "training.steps", "= '100': must be a whole number, without quotes"),
    _job("truth for a number", "tp = 2", "tp = true", "parallel.tp", "= True: must be a whole number"),
    _job("fraction for a count", "steps = 100", "steps = 100.0", "training.steps", "must be a whole number"),
    _job("number for truth", "steps = 100", "steps = 100\ndeterministic = 1", "training.deterministic", "must be true or false"),
    _job("number for text", "nodes = 2", "nodes = 2\npartition = 7", "slurm.partition", "must be text, in quotes"),
    _job("zero", "tp = 2", "tp = 0", "parallel.tp", "= 0: must be at least 1"),
    _job("negative", "lr = 1e-3", "lr = -1e-3", "optimizer.lr", "must be more than 0"),
    _job("not a number", "lr = 1e-3", "lr = nan", "optimizer.lr", "must be a finite number"),
    _job("choice", "tp = 2", 'tp = 2\ndp_mode = "zero3"', "parallel.dp_mode", "must be 'ddp' or 'zero1' or 'zero2' or 'fsdp'"),
    _job("one of two", "lr = 1e-3", "lr = 1e-3\nbetas = [0.9]", "optimizer.betas", "must have 2 values"),
    _job("axis twice", "tp = 2", 'tp = 2\norder = ["tp", "tp", "ep", "dp", "pp"]', "parallel.order", "each axis once: tp, cp, ep, dp, pp"),
    _job("date", "nodes = 2", "nodes = 2\ntime = 01:00:00", "slurm.time", "written in quotes"),
    _job("no time", "nodes = 2", 'nodes = 2\ntime = "soon"', "slurm.time", "write minutes, H:MM:SS"),
    _job("bad range", "nodes = 2", 'nodes = "two"', "slurm.nodes", 'a range such as "8-10"'),
    _job("range backwards", "nodes = 2", 'nodes = "10-8"', "slurm.nodes", 'write "8-10"'),
    _job("range and spares", "nodes = 2", 'nodes = "2-3"\nspares = 1', "slurm.nodes", "not both"),
    _job("array of all at once", "nodes = 2", 'nodes = 2\narray = "1-4"', "slurm.array", 'one at a time: write "1-4%1"'),
    _job("array of nothing", "nodes = 2", 'nodes = 2\narray = "four"', "slurm.array", 'write "1-4%1"'),
    _job("empty text", "nodes = 2", 'nodes = 2\naccount = ""', "slurm.account", "is empty"),
    _job("two lines", "nodes = 2", 'nodes = 2\nconstraint = "a\\n#SBATCH -N9"', "slurm.constraint", "must be one line"),
    _job("two words", "nodes = 2", 'nodes = 2\npartition = "a b"', "slurm.partition", "must be one word"),
    _job("owned option", "nodes = 2", 'nodes = 2\nextra = ["--mail-type=END", "--nodes=3"]', "slurm.extra[1]", "slurm.nodes, or -N"),
    _job("owned short", "nodes = 2", 'nodes = 2\nextra = ["-Jother"]', "slurm.extra[0]", "run.name, or -J"),
    _job(
        "owned abbreviated", "nodes = 2", 'nodes = 2\nextra = ["--gpus-per-t=1"]', "slurm.extra[0]", "--gpus-per-task does not belong here"
    ),
    _job("owned export", "nodes = 2", 'nodes = 2\nextra = ["--export=ALL"]', "slurm.extra[0]", "[environment]"),
    _job("option in two words", "nodes = 2", 'nodes = 2\nextra = ["--mail-type", "END"]', "slurm.extra[1]", "in one word"),
    _job("GPUs as gres", "nodes = 2", 'nodes = 2\nextra = ["--gres=gpu:2"]', "slurm.extra[0]", "slurm.gpus_per_node"),
    _job("bad variable", "[slurm]", "[environment]\n1A = 'x'\n\n[slurm]", "environment.1A", "no digit first"),
    _job("variable with NUL", "[slurm]", '[environment]\nA = "x\\u0000"\n\n[slurm]', "environment.A", "NUL"),
    _job("variable of Slurm", "[slurm]", "[environment]\nSLURM_NTASKS = 2\n\n[slurm]", "environment.SLURM_NTASKS", "Slurm's own"),
    _job("truth as variable", "[slurm]", "[environment]\nA = true\n\n[slurm]", "environment.A", "must be text, in quotes"),
    _job("run name", "[model]", '[run]\nname = "a/b"\n\n[model]', "run.name", "use letters, digits"),
    _job("variable not set", '"tokens"', '"$NOT_SET_ANYWHERE/tokens"', "data.path", "$NOT_SET_ANYWHERE is not set"),
    _job("home of another", '"tokens"', '"~ada/tokens"', "data.path", "write the path out"),
    _job("newer format", "[model]", "v = 2\n\n[model]", "v", "of another release: this one reads 1 to 1"),
    _job("several faults", "tp = 2\npp = 2", "tp = 0\npp = -1", "parallel.tp", "must be at least 1 (and 1 more)"),
    _set("--set without =", "training.steps", "", "write --set key=value"),
    _set("--set misspelt", "training.stps=3", "training.stps", "did you mean 'training.steps'?"),
    _set("--set below a value", "run.name.x=3", "run.name.x", "unknown key"),
    _set("a run named like a job", "run.name=4711", "run.name", "looks like a job id"),
    _set("a run named like a member", "run.name=47_1", "run.name", 'such as "run47_1"'),
    _set("an exponent for a count", "training.steps=1e3", "training.steps", "must be a whole number: write 1000, without"),
    _set("--set of the wrong kind", "parallel.tp=two", "parallel.tp", "--set parallel.tp: parallel.tp = 'two': must be a whole number"),
    BadFile(
        "option of the wrong kind",
        "job",
        GOOD_JOB.encode(),
        "slurm.nodes",
        "command line: slurm.nodes = 0: must be at least 1",
        options={"slurm.nodes": 0},
    ),
]

CROSS = [
    _job("tp and heads", "tp = 2", "tp = 3", "parallel.tp", "does not divide heads = 4: use 1, 2 or 4"),
    _job("tp and sequence", "sequence_length = 64", "sequence_length = 63", "parallel.tp", "does not divide sequence_length = 63"),
    _job("tp and ffn", '"tiny"', '"tiny"\nffn = 191', "parallel.tp", "does not divide ffn = 191"),
    _job("kv heads and heads", '"tiny"', '"tiny"\nkv_heads = 3', "model.kv_heads", "does not divide heads = 4: use 1, 2 or 4"),
    _job("heads and hidden", '"tiny"', '"tiny"\nhidden = 66', "model.heads", "does not divide hidden = 66"),
    _job("odd head", '"tiny"', '"tiny"\nhidden = 60', "model.head_dim", "must be even"),
    _job("stages and layers", "pp = 2", "pp = 8", "parallel.pp", "makes 8 stages (vp = 1), more than layers = 4: use pp = 4 or less"),
    _job("expert parallelism", "pp = 2", "pp = 2\nep = 2", "parallel.ep", "not in this release: leave ep at 1"),
    _job("beta of one", "lr = 1e-3", "lr = 1e-3\nbetas = [0.9, 1.0]", "optimizer.betas", "less than 1"),
    _job("floor above lr", "lr = 1e-3", "lr = 1e-3\nmin_lr = 0.1", "optimizer.min_lr", "at most lr = 0.001"),
    _job("warm-up too long", "lr = 1e-3", "lr = 1e-3\nwarmup_steps = 101", "optimizer.warmup_steps", "at most training.steps = 100"),
    _job("decay before warm-up", "lr = 1e-3", "lr = 1e-3\nwarmup_steps = 9\ntotal_steps = 5", "optimizer.total_steps", "warmup_steps = 9"),
    _job(
        "batch",
        "global_batch = 8",
        "global_batch = 9",
        "training.global_batch",
        "not a multiple of dp x micro_batch = 2 x 1 = 2: use 8 or 10",
    ),
    _job(
        "few micro-batches",
        "global_batch = 8",
        "global_batch = 2",
        "training.global_batch",
        "fewer than pp = 2 stages of 1f1b: use 4 or more",
    ),
    _job(
        "world",
        "nodes = 2",
        "nodes = 2\ngpus_per_node = 3",
        "slurm.nodes",
        "2 nodes x 3 GPUs = 6 ranks is not divisible by tp x pp x cp = 2 x 2 x 1 = 4: use 4",
    ),
    _job("dp", "pp = 2", "pp = 2\ndp = 4", "parallel.dp", "2 nodes x 4 GPUs = 8 ranks leaves, 8 / (tp x pp x cp = 4) = 2: write 2"),
    _job("more than a node has", "nodes = 2", "nodes = 2\ngpus_per_node = 8", "slurm.gpus_per_node", "has 4: use 1 to 4"),
]

SITE = [
    BadFile("site: not toml", "site", b"gpus: 4", "", "not TOML at line 1"),
    _site("site: missing table", "[node]\ngpus = 4\n", "", "node", "missing table: [node] with gpus"),
    _site("site: misspelt", "gpus = 4", "gpu_count = 4", "node.gpu_count", "unknown key 'node.gpu_count'; [node] has gpus, cpus_per_gpu"),
    _site("site: unknown device", '"cpu"', '"gpu"', "device", "must be 'cuda' or 'cpu'"),
    _site("site: unknown domain", "gpus = 4", 'gpus = 4\nnvlink_domain = "rack"', "node.nvlink_domain", "'node' or 'block' or 'pairs'"),
    _site("site: block of how many", "gpus = 4", 'gpus = 4\nnvlink_domain = "block"', "node.block_nodes", "how many nodes"),
    _site("site: block without block", "gpus = 4", "gpus = 4\nblock_nodes = 2", "node.block_nodes", 'needs nvlink_domain = "block"'),
    _site("site: odd pairs", "gpus = 4", 'gpus = 3\nnvlink_domain = "pairs"', "node.gpus", "must be even"),
    _site(
        "site: ulimit",
        "[node]",
        '[environment]\nulimits = { memlock = "unlimited" }\n\n[node]',
        "environment.ulimits.memlock",
        "one letter",
    ),
    _site("site: ulimit value", "[node]", '[environment]\nulimits = { l = "lots" }\n\n[node]', "environment.ulimits.l", '"unlimited"'),
    _site("site: owned option", "[node]", "[slurm.x]\n\n[node]", "slurm.x", "unknown key"),
    _site("site: extra", "stop_notice_s = 60", 'stop_notice_s = 60\nextra = ["-p gpu"]', "slurm.extra[0]", "slurm.partition"),
    _site("site: notice", "stop_notice_s = 60", "stop_notice_s = -1", "slurm.stop_notice_s", "at least 0"),
    _site("site: time", "stop_notice_s = 60", 'time = "1 day"', "slurm.time", "D-HH:MM:SS"),
    _site(
        "site: variable",
        "[node]",
        "[fabric.environment]\nNCCL-DEBUG = 'INFO'\n\n[node]",
        "fabric.environment.NCCL-DEBUG",
        "variable's name",
    ),
    _site("site: not a list", "[node]", '[environment]\nmodules = "openmpi"\n\n[node]', "environment.modules", "must be an array"),
    _site("site: timeout", "[node]", "[timeouts]\nstart_timeout_s = 0\n\n[node]", "timeouts.start_timeout_s", "at least 1"),
]

POLICY = [
    _policy("policy: not toml", "lock", "", "not TOML at its end"),
    _policy("policy: other table", "[locks]\n", "locks", "a policy has one table: [lock]"),
    _policy("policy: unknown key", '[lock]\n"slurm.partitoin" = "x"', "slurm.partitoin", "did you mean 'slurm.partition'?"),
    _policy(
        "policy: unknown site key", '[lock]\n"site.slurm.exclusiv" = true', "site.slurm.exclusiv", "did you mean 'site.slurm.exclusive'?"
    ),
    _policy("policy: a table", "[lock]\nslurm = 3", "slurm", "lock single keys"),
    _policy("policy: contradicted", '[lock]\n"parallel.tp" = 1', "parallel.tp", "allows 1 alone"),
    _policy("policy: contradicted by the site", "[lock]\nsite.slurm.stop_notice_s = 300", "slurm.stop_notice_s", "allows 300 alone"),
    _policy(
        "policy: wrong value", '[lock]\n"parallel.dp" = "many"', "parallel.dp", "policy.toml: parallel.dp = 'many': must be a whole number"
    ),
]

CASES: list[BadFile] = [*JOB, *CROSS, *SITE, *POLICY]
