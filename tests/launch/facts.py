"""What a request is told besides the files."""

from __future__ import annotations

from dataclasses import dataclass, field

from slurmtrain.launch.request import CodeRecord, Submitter, Versions


@dataclass(frozen=True)
class SampleFacts:
    python: str = "/env/bin/python"
    passthrough: tuple[str, ...] = ()
    prepare: tuple[str, ...] = ()
    submitter: Submitter = field(default_factory=lambda: Submitter(user="ada", host="login1", cwd="/home/ada", argv=("slurmtrain",), t=1.0))
    code: CodeRecord = field(default_factory=CodeRecord)
    versions: Versions = field(default_factory=Versions)
