"""Every kind of bad job file, site file, template and option: one line, exit code 2, nothing left behind."""

from __future__ import annotations

import pytest

from tests.cli.desk import Desk, one_line_of
from tests.config.bad_files import CASES as FILES
from tests.launch.bad_templates import CASES as TEMPLATES

AT_SUBMIT = [case for case in FILES if case.kind != "policy" and not case.options]
OPTIONS = [
    (("-N", "two"), "slurm.nodes"),
    (("-N", "0"), "slurm.nodes"),
    (("-N", "4-2"), "slurm.nodes"),
    (("-N", "3"), "training.global_batch"),
    (("--spares", "x"), "--spares"),
    (("--spares", "-1"), "--spares"),
    (("--gpus-per-node", "9"), "slurm.gpus_per_node"),
    (("-J", "a/b"), "run.name"),
    (("-J", ".."), "run.name"),
    (("-t", "soon"), "slurm.time"),
    (("-t", "1"), "slurm.time"),
    (("-a", "1-4"), "slurm.array"),
    (("-p", "two words"), "slurm.partition"),
    (("--set", "training.stps=5"), "training.steps"),
    (("--set", "training"), "key=value"),
    (("--set", "training.steps=many"), "training.steps"),
    (("--site", "nope"), "no site 'nope'"),
    (("--site", "/gone.toml"), "no such site file"),
    (("--template", "nope"), "no template 'nope'"),
    (("--template", "/gone.sbatch.j2"), "cannot read this template"),
    (("--include", "gone.py"), "gone.py"),
    (("--root", "/no/such/place"), "there is no folder /no/such"),
    (("--root", "/etc/passwd"), "is not a folder"),
    (("--nodse", "4"), "--nodse"),
    (("-N",), "-N"),
    (("--", "--nodes=4"), "slurm.nodes"),
    (("--", "--wrap=x"), "--wrap"),
    (("--", "train.sh"), "not an option"),
    (("extra.toml",), "not an option"),
    (("--template", __file__), "test_bad_files.py: the file of a template ends in .sbatch.j2"),
    (("--site", __file__), "test_bad_files.py: the file of a site ends in .toml"),
]


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


def test_the_tables_are_large_enough():
    assert len(AT_SUBMIT) >= 40
    assert len({case.name for case in TEMPLATES}) >= 20


@pytest.mark.parametrize("case", AT_SUBMIT, ids=lambda case: case.name)
def test_bad_job_and_site_files(case, desk):
    case.write(desk.folder)
    sets = [word for text in case.sets for word in ("--set", text)]
    line = one_line_of(desk.submit(*sets))
    assert case.says in line
    assert desk.files() == []


@pytest.mark.parametrize("case", TEMPLATES, ids=lambda case: case.name)
def test_bad_templates(case, desk):
    for name, text in {"mine": case.text, **case.files}.items():
        (desk.folder / f"{name}.sbatch.j2").write_text(text)
    line = one_line_of(desk.submit("--template", "mine"))
    for words in case.says:
        assert words in line
    assert desk.files() == []


@pytest.mark.parametrize(("words", "says"), OPTIONS, ids=lambda value: " ".join(value) if isinstance(value, tuple) else "")
def test_bad_options(words, says, desk):
    assert says in one_line_of(desk.submit(*words))
    assert desk.files() == []
