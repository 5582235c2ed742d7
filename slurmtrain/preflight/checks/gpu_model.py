"""GPUs of another model than node.gpu of the site; where the site does not say, than those of most nodes.

nvidia-smi's names do not say what they leave as understood: "NVIDIA H100 80GB HBM3" is the SXM board, "NVIDIA H100 PCIe" and "NVIDIA H100
NVL" say that they are not. So all words of the site's name but the maker's and the form must be there, and a form that both say must be
the same:

| site | fits | does not |
|---|---|---|
| NVIDIA H100 SXM | NVIDIA H100 80GB HBM3 | NVIDIA H100 PCIe, NVIDIA H100 NVL, NVIDIA H200, NVIDIA GH200 480GB |
| NVIDIA A100 SXM | NVIDIA A100-SXM4-80GB, A100-SXM4-40GB | NVIDIA A100-PCIE-40GB, NVIDIA A100 80GB PCIe |
| NVIDIA GH200 SXM | NVIDIA GH200 480GB | NVIDIA H200, NVIDIA GB200 |
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from slurmtrain.preflight.checks._gpus import folded, gpus, most, named
from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources._nvidia import nvidia

_FORM = re.compile(r"(SXM|PCIE|NVL)\d*$")
_REMEDY = "ask for nodes of one kind (slurm.partition, slurm.gpu_type), or correct node.gpu of the site"


def fits(product: str, wanted: str) -> bool:
    """Whether nvidia-smi's name of a product may be the board that the hardware table names.

    >>> fits("NVIDIA H100 80GB HBM3", "NVIDIA H100 SXM"), fits("NVIDIA H100 PCIe", "NVIDIA H100 SXM")
    (True, False)
    """
    (theirs, form), (ours, our_form) = _split(product), _split(wanted)
    return ours <= theirs and (not form or not our_form or form == our_form)


def _split(name: str) -> tuple[set[str], str]:
    """The words of a name without its maker, and its form."""
    words = [word for word in re.split(r"[\s\-_]+", name.upper()) if word and word not in {"NVIDIA", "TESLA"}]
    forms = [found.group(1) for word in words if (found := _FORM.match(word))]
    return {word for word in words if not _FORM.match(word)}, forms[0] if forms else ""


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:
    wanted = request.site.node.gpu
    if wanted is not None:
        yield from folded(
            (gpu["index"], Trouble("fail", f"{gpu['name']}, and node.gpu is {wanted}", _REMEDY))
            for gpu in gpus(facts)
            if not fits(gpu["name"], wanted)
        )


def compare(facts: Mapping[str, Facts], request: Request) -> Iterator[tuple[str, Trouble]]:
    common = most(gpu["name"] for known in facts.values() for gpu in gpus(known))
    if request.site.node.gpu is None:
        for node, known in facts.items():
            odd = [gpu for gpu in gpus(known) if gpu["name"] != common]
            if odd:
                item = named(gpu["index"] for gpu in odd)
                yield node, Trouble("warn", f"{odd[0]['name']}, most others are {common}", _REMEDY, item)


CHECK = Check("gpu-model", "gpus", "the GPUs are what the site says", judge, compare, wanted=nvidia)
