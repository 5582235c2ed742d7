"""A program for test_fuzz: thousands of changed manifests and files, each given to all that reads checkpoints.

    python -m tests.checkpoint.fuzz WHAT FIRST COUNT        WHAT: manifest, files, first (manifests of format 1)

Whatever is changed, it must end in errors of ours, of one line each, or in the right values: those that the manifest says
(`fuzz_oracle`), and where a manifest's bytes were changed without a new sum, or a file's under the policy `full`, those that were
saved. Memory is bounded by RLIMIT_AS, and each trial by a time, after which all stacks are printed. stdout: one line of JSON for each
fault, and in the end one of counts.
"""

from __future__ import annotations

import faulthandler
import json
import random
import resource
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from slurmtrain.boxes import Box, whole
from slurmtrain.checkpoint import making, rewrite, skeleton
from slurmtrain.checkpoint.copying import copy_checkpoint
from slurmtrain.checkpoint.cuts import Sizing
from slurmtrain.checkpoint.damage import damage, strangers
from slurmtrain.checkpoint.diff import compare
from slurmtrain.checkpoint.dtypes import carrier
from slurmtrain.checkpoint.group import SoloGroup
from slurmtrain.checkpoint.load import PartReader, Wish
from slurmtrain.checkpoint.restore import restore
from slurmtrain.errors import CorruptCheckpointError, SlurmtrainError
from slurmtrain.rundir import RunDir
from slurmtrain.store.listing import Found, newest_durable_step, newest_verified
from slurmtrain.store.manifest import Manifest
from slurmtrain.store.retention import kept
from slurmtrain.store.verify import cheap_problems, read_manifest, verify
from tests.checkpoint.fuzz_mutations import mutated_file, mutated_manifest, sealed, unsealed
from tests.checkpoint.fuzz_oracle import Told
from tests.checkpoint.stored import cut_columns, store, with_chunks
from tests.checkpoint.test_located import FORMAT_1, TENSORS, content
from tests.checkpoint.tilings import part_of

MEMORY = 400 << 20
TRIAL_S = 60
POLICIES = ("full", "sampled", "sizes")
TOOLS_EVERY = 8


class Fault(Exception):  # noqa: N818 a finding
    """What must not be."""


def tensors() -> dict[str, Any]:
    made = np.random.default_rng(5)
    return {
        "model/w": made.standard_normal((64, 256)).astype(np.float32),
        "model/embedding": made.standard_normal((33, 40)).astype(np.float32),
        "model/half": ("bfloat16", made.integers(0, 1 << 16, (20, 30), np.uint16)),
        "optimizer/w/exp_avg": made.standard_normal((9, 4, 5)).astype(np.float64),
        "model/norm": made.standard_normal(600).astype(np.float32),
        "model/scale": np.float32(0.5).reshape(()),
        "model/none": np.zeros((0, 3), np.float32),
        "rng/pp0-dp0-ep0-cp0-tp0/cpu": made.integers(0, 256, 50, np.uint8),
    }


class Subject:
    """A run with a sound checkpoint of step 10, and one of step 20 that trials change."""

    def __init__(self, root: Path) -> None:
        self.root, self.run = root, RunDir(root / "run")
        named = {name: one if isinstance(one, tuple) else (one.dtype.name, one) for name, one in tensors().items()}
        self.values = dict(named)
        patches = [
            mock.patch.object(skeleton, name, value)
            for name, value in (("SMALL_BYTES", 4096), ("PANEL_BYTES", 2048), ("PANEL_ROW_BYTES", 16))
        ]
        state = {"v": 1, "position": 7, "metrics": {"loss": 1.5}}
        for patch in patches:
            patch.start()
        for step in (10, 20):
            folder = self.run.checkpoint(step)
            made = store(folder, step, tensors(), files=3, cut=cut_columns, chunk_bytes=1024, state=state)
            (folder / "manifest.json").write_bytes(with_chunks(made, folder).to_json())
        for patch in patches:
            patch.stop()
        self._keep(20)

    def _keep(self, step: int) -> None:
        self.folder, self.step = self.run.checkpoint(step), step
        self._was = {path.name: path.read_bytes() for path in self.folder.iterdir()}

    @property
    def manifest(self) -> bytes:
        return self._was["manifest.json"]

    def put_back(self) -> None:
        """The checkpoint as it was made."""
        for path in self.folder.iterdir():
            if path.name not in self._was:
                path.unlink()
        for name, data in self._was.items():
            (self.folder / name).write_bytes(data)

    def wishes(self, rng: random.Random, parts: float = 0.5) -> list[Wish]:
        """What a model wants: each tensor, or, of so many, a part."""
        found = []
        for name, (dtype, array) in self.values.items():
            box = whole(array.shape)
            if array.size and rng.random() < parts:
                start = [rng.randrange(n) for n in array.shape]
                box = Box(tuple(start), tuple(rng.randint(1, n - a) for a, n in zip(start, array.shape, strict=True)))
            found.append(Wish(part_of(name, array.shape, box), dtype, np.zeros(box.shape, carrier(dtype))))
        return found

    def as_saved(self, wish: Wish) -> bool:
        return wish.target.tobytes() == _cut(self.values[wish.part.name][1], wish.part.box).tobytes()

    def as_told(self, wish: Wish) -> bool:
        """Whether it is what the manifest says now."""
        part, told = wish.part, Told(self.folder)
        same = told.kind(part.name) == (part.global_shape, wish.dtype)
        return same and wish.target.tobytes() == told.value(part.name, part.box.offset, part.box.shape).tobytes()


class First(Subject):
    """Of the first format."""

    def __init__(self, root: Path) -> None:
        self.root, self.run = root, RunDir(root / "run")
        self.values = {name: (dtype, content(name)) for name, (_, dtype, _) in TENSORS.items()}
        for step in (30, 40):
            shutil.copytree(FORMAT_1, self.run.checkpoint(step))
        path = self.run.checkpoint(30) / "manifest.json"
        path.write_bytes(sealed(json.dumps(unsealed(path.read_bytes()) | {"step": 30}, separators=(",", ":")).encode()))
        self._keep(40)

    def as_told(self, wish: Wish) -> bool:
        """HDF5 alone knows."""
        return True


def _checked(folder: Path) -> Manifest:
    """The manifest, looked through, as commands do before they write."""
    manifest = read_manifest(folder)
    if problems := cheap_problems(folder, manifest):
        raise CorruptCheckpointError(problems[0])
    return manifest


def _cut(array: np.ndarray, box: Box) -> np.ndarray:
    return np.asarray(array[tuple(slice(a, b) for a, b in zip(box.offset, box.stop, strict=True))])


class Trial:
    """One change, given to all readers. `counts`: what came of it."""

    def __init__(self, subject: Subject, rng: random.Random, counts: Counter[str], *, tools: bool) -> None:
        self.subject, self.rng, self.counts, self.tools = subject, rng, counts, tools
        self.folder, self.run = subject.folder, subject.run
        self.policy: Any = rng.choice(POLICIES)

    def told(self, what: str, deed: Callable[[], Any]) -> Any:
        """What the deed gives, or None where it ends in an error of ours."""
        try:
            return deed()
        except SlurmtrainError as error:
            self.one_line(what, str(error))
            self.counts[f"{what}: refused"] += 1
            return None

    def one_line(self, what: str, text: str) -> None:
        try:
            text.encode()
        except UnicodeError as error:
            raise Fault(f"{what}: cannot be printed: {text[:200]!r}") from error
        if not text or text.splitlines() != [text] or len(text) > 2000:
            raise Fault(f"{what}: not a line: {text[:200]!r}")

    def of_manifest(self, *, resealed: bool) -> None:
        for line in verify(self.folder, self.policy):
            self.one_line("verify", line)
        manifest = self.told("manifest", lambda: read_manifest(self.folder))
        if manifest is not None:
            self._read(manifest)
        sums = self._restored("full")
        if sums is not None and not resealed and not all(map(self.subject.as_saved, sums)):
            raise Fault("values that were not saved, under another manifest's sum")
        kept(self.run)
        newest_durable_step(self.run.checkpoints)
        found = newest_verified(self.run.checkpoints)
        compared = self.passed_over is not None and type(self.subject) is Subject  # of format 1 HDF5 knows more than the manifest
        if compared and self.passed_over != (found is None or found.step != self.subject.step):
            raise Fault(f"newest_verified finds {found and found.step}, restore passes it over: {self.passed_over}")
        if self.tools:
            self._tools()

    def of_files(self) -> None:
        """The manifest is as it was; a file is not, or its bytes are."""
        self.counts[f"verify {self.policy}: {'found' if verify(self.folder, self.policy) else 'not found'}"] += 1
        manifest = read_manifest(self.folder)
        for line in damage(self.folder, manifest, self.policy):
            self.one_line("damage", line)
        wishes = self.subject.wishes(self.rng)
        if self.told(f"load {self.policy}", lambda: self._filled(manifest, wishes, self.policy)) and self.policy == "full":
            wrong = [wish.part.name for wish in wishes if not self.subject.as_saved(wish)]
            if wrong:
                raise Fault(f"wrong values under full: {wrong}")
        for policy in ("full", self.policy):
            loaded = self._restored(policy)
            self.counts[f"restore {policy}: {'loaded' if loaded else 'passed over'}"] += 1
            if policy == "full" and loaded and not all(map(self.subject.as_saved, loaded)):
                raise Fault("restore loads wrong values under full")
        same = all((self.folder / name).read_bytes() == data for name, data in self.subject._was.items())
        if (not verify(self.folder)) != same:
            raise Fault(f"verify says {verify(self.folder)}, the bytes are {'the same' if same else 'others'}")
        if self.tools:
            self._tools()

    def _read(self, manifest: Manifest) -> None:
        """What reads a manifest without asking whether it holds."""
        for line in damage(self.folder, manifest, self.policy):
            self.one_line("damage", line)
        strangers(self.folder, manifest)
        wishes = self.subject.wishes(self.rng)
        if self.told("part", lambda: self._filled(manifest, wishes, self.policy)):
            wrong = [wish.part.name for wish in wishes if not self.subject.as_told(wish)]
            if wrong:
                raise Fault(f"not what the manifest says: {wrong}")
            self.counts["part: loaded"] += 1
        one = self.rng.choice(wishes)
        self.told("one part", lambda: self._filled(manifest, [one], self.policy, one_by_one=True))
        if cheap_problems(self.folder, manifest):
            self.counts["index: refused"] += 1
            return
        self.counts["index: holds"] += 1
        every = [
            Wish(part_of(name, entry.shape), entry.dtype, np.empty(entry.shape, carrier(entry.dtype)))
            for name, entry in manifest.tensors.items()
        ]
        if self.told("all", lambda: self._filled(manifest, every, "full")) and not all(map(self.subject.as_told, every)):
            raise Fault("not what the manifest says, of all")

    def _filled(self, manifest: Manifest, wishes: list[Wish], policy: Any, *, one_by_one: bool = False) -> bool:
        with PartReader(self.folder, manifest, policy, (self.rng.randrange(3), 3)) as reader:
            if one_by_one:
                for wish in wishes:
                    reader.fill(*wish)
            else:
                reader.fill_all(wishes)
        return True

    def _restored(self, policy: Any) -> list[Wish] | None:
        """What a restart loads of the changed checkpoint; None where it turns to the one before."""
        kept: list[Wish] = []

        def load(found: Found) -> None:
            kept[:] = self.subject.wishes(self.rng, 0.0)
            with PartReader(found.folder, found.manifest, policy) as reader:
                reader.fill_all(kept)

        self.passed_over = None
        found = self.told("restore", lambda: restore(self.run.checkpoints, SoloGroup(), load, policy=policy))
        if found is None:
            return None  # a tensor is another, or not there: no older one would mend that
        self.passed_over = found.step != self.subject.step
        for _, why in found.passed_over:
            self.one_line("passed over", why)
        if found.step != self.subject.step:
            if not all(map(self.subject.as_saved, kept)):
                raise Fault("the one before is not as it was saved")
            return None
        if policy == "full" and (
            not all(map(self.subject.as_told, kept)) or (type(self.subject) is Subject and not Told(self.folder).sums_are_right())
        ):
            raise Fault("restored, and not what the manifest says")
        return kept

    def _tools(self) -> None:
        before = next(one for one in sorted(self.run.checkpoints.iterdir()) if one != self.folder)
        out = self.subject.root / "out"
        for what, deed in (
            ("copy", lambda: copy_checkpoint(self.folder, out)),
            ("reshard", lambda: rewrite.reshard(self.folder, _checked(self.folder), out, Sizing(files=2))),
            ("diff", lambda: compare((before, read_manifest(before)), (self.folder, read_manifest(self.folder)), lambda _: True)),
            ("size", lambda: making.bytes_of(making.kinds_of(read_manifest(self.folder)))),
        ):
            done = self.told(what, deed)
            self.counts[f"{what}: {'done' if done is not None else 'refused'}"] += 1
            if what in {"copy", "reshard"} and done is not None and verify(out):
                raise Fault(f"{what}: what it made does not verify: {verify(out)}")
            shutil.rmtree(out, ignore_errors=True)
            if [path.name for path in out.parent.iterdir()] != ["run"]:
                raise Fault(f"{what}: leaves {sorted(path.name for path in out.parent.iterdir())}")


def trial(subject: Subject, what: str, seed: int, counts: Counter[str]) -> str | None:
    """How a trial went wrong."""
    rng = random.Random(f"{what} {seed}")
    doing = Trial(subject, rng, counts, tools=seed % TOOLS_EVERY == 0)
    if what == "files":
        paths = sorted(subject.folder.glob("*.h5"))
        how = "; ".join(mutated_file(rng, rng.choice(paths), paths) for _ in range(rng.choice((1, 1, 2))))
    else:
        data, how = mutated_manifest(rng, subject.manifest)
        (subject.folder / "manifest.json").write_bytes(data)
    try:
        doing.of_files() if what == "files" else doing.of_manifest(resealed="byte " not in how or how.endswith("sealed"))
    except Exception as error:  # noqa: BLE001 the finding
        lines = [] if isinstance(error, Fault) else traceback.format_exception(error)[-6:]
        return f"{how} -> {type(error).__name__}: {str(error)[:300]} {''.join(lines)}"
    return None


def peak_kib() -> int:
    """The most resident memory of this program alone (ru_maxrss counts that of the process which started it, too)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def main(what: str, first: int, count: int) -> None:
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as root:
        subject = (First if what == "first" else Subject)(Path(root))
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
        for seed in range(first, first + count):
            faulthandler.dump_traceback_later(TRIAL_S, exit=True)
            fault = trial(subject, what, seed, counts)
            subject.put_back()
            if fault:
                print(json.dumps({"what": what, "seed": seed, "fault": fault}), flush=True)
        faulthandler.cancel_dump_traceback_later()
        left = len(list(Path("/proc/self/fd").iterdir()))
    print(json.dumps({"counts": dict(sorted(counts.items())), "peak": peak_kib(), "open": left}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
