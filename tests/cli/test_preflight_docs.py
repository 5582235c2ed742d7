"""docs/preflight.md says what is: its tables are the registry's, and its example of a check works as it stands there."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from slurmtrain.clock import SystemClock
from slurmtrain.config.site import SiteConfig
from slurmtrain.preflight import diagnosis, registry
from slurmtrain.preflight.answer import NodeAnswer
from slurmtrain.preflight.gather import gather
from slurmtrain.preflight.listing import MEASURED, OF_ALL
from slurmtrain.preflight.machine import Machine
from slurmtrain.preflight.registry import all_checks
from slurmtrain.preflight.request import Request
from tests.fakes.shell import FakeShell

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "preflight.md").read_text()
CPU0 = "sys/devices/system/cpu/cpu0/cpufreq"


def test_the_tables_name_every_check_with_its_own_words():
    told = dict(re.findall(r"^\| `([\w-]+)` \| (.*) \|$", PAGE, re.MULTILINE))
    want = {**{check.name: check.about for check in all_checks()}, **OF_ALL, **MEASURED}
    assert {name: told.get(name) for name in want} == want


@pytest.fixture
def example(tmp_path, monkeypatch):
    """The three files of the example: source, check, rows."""
    found = []
    for number, text in enumerate(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)):
        path = tmp_path / f"docs_example_{number}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, path.stem, module)
        spec.loader.exec_module(module)
        found.append(module)
    source, check, rows = found
    monkeypatch.setattr(registry, "all_sources", lambda: (source.SOURCE,))
    monkeypatch.setattr(registry, "all_checks", lambda: (check.CHECK,))
    return source.SOURCE, check.CHECK, rows


REQUEST = Request(1.0, "", "", "", (), SiteConfig.model_validate({"name": "here", "device": "cpu", "node": {"gpus": 1}}), health=True)


def diagnosed(gathered) -> list[tuple[str, str, str]]:
    answer = NodeAnswer("n1", True, (), "3.11", "0.1.0", 1, 1, facts=gathered.facts, unknown=gathered.unknown)
    return [(one.check, one.grade, str(one)) for one in diagnosis.diagnose({"n1": answer}, REQUEST)]


@pytest.mark.parametrize(("governor", "found"), [("performance\n", []), ("powersave\n", ["cpu-governor"]), (None, [])])
def test_the_example_looks_and_judges(example, tmp_path, governor, found):
    if governor is not None:
        (tmp_path / CPU0).mkdir(parents=True)
        (tmp_path / CPU0 / "scaling_governor").write_text(governor)
    gathered = gather([example[0]], Machine(FakeShell(), {}, SystemClock(), tmp_path), REQUEST, clock=SystemClock())
    told = diagnosed(gathered)
    assert [check for check, _, _ in told] == found
    assert all("cpupower" in line for _, _, line in told)


def test_the_example_fails_closed(example, tmp_path):
    (tmp_path / CPU0).mkdir(parents=True)
    gathered = gather([example[0]], Machine(FakeShell(), {}, SystemClock(), tmp_path), REQUEST, clock=SystemClock())
    ((check, grade, line),) = diagnosed(gathered)
    assert (check, grade) == ("governor", "unknown")
    assert "preflight.skip" in line


def test_the_examples_rows_are_true_of_it(example):
    source, check, rows = example
    assert (check.source, set(rows.FACTS)) == (source.name, {source.name})
    (row,) = rows.ROWS
    good = list(check.judge(rows.FACTS["governor"], REQUEST))
    (bad,) = check.judge({**rows.FACTS["governor"], **row.facts["governor"]}, REQUEST)
    assert good == []
    assert (row.check, bad.grade) == (check.name, row.grade)
    assert row.words in str(bad)
