"""The recorded baseline: found where site files are, merged row by row, and counted for the same hardware alone."""

from __future__ import annotations

import json
from statistics import median

import pytest

from slurmtrain.config.site import SiteConfig
from slurmtrain.errors import ConfigError
from slurmtrain.preflight.baseline import Baseline, baseline_path, read_baseline, record_path, rows_of, write_baseline
from slurmtrain.preflight.rates import Kind
from tests.fakes.disk import FakeDisk

H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"
MATMUL = Kind("matmul_tflops", 8192, 1, H100)
WORLD = Kind("world_reduce_gb_s", 1 << 28, 8, H100)


def site(**preflight) -> SiteConfig:
    return SiteConfig.model_validate({"name": "alps", "node": {"gpus": 8}, "preflight": preflight})


def recorded(values, kind=MATMUL, **more) -> Baseline:
    return Baseline().merged(rows_of({kind: values}, when=1000.0, versions={"torch": "2.13"}, **more))


def test_a_row_is_the_median_with_its_spread_and_comes_back_from_its_file(tmp_path):
    values = [700.0, 710.0, 690.0, 705.0, 650.0]
    path = tmp_path / "alps.baseline.json"
    write_baseline(path, FakeDisk(), recorded(values))
    raw = json.loads(path.read_bytes())
    assert raw["v"] == 1
    row = raw["rows"][0]
    assert (row["value"], row["count"], row["unit"], row["when"], row["versions"]) == (
        median(values),
        5,
        "TFLOPS",
        1000.0,
        {"torch": "2.13"},
    )
    assert row["spread"] == pytest.approx(60 / 700, abs=1e-3)
    back = read_baseline(path)
    assert back.healthy(MATMUL) == 700.0
    assert back.rows == recorded(values).rows


def test_it_counts_for_exactly_its_kind():
    baseline = recorded([700.0])
    assert baseline.healthy(Kind("matmul_tflops", 4096, 1, H100)) is None
    assert baseline.healthy(Kind("matmul_tflops", 8192, 1, A100)) is None
    assert baseline.healthy(WORLD) is None


def test_of_other_hardware_it_does_not_count_and_says_so():
    baseline = recorded([700.0])
    assert baseline.foreign([H100, A100]) == ""
    said = baseline.foreign([A100])
    assert A100 in said
    assert H100 in said
    assert Baseline().foreign([A100]) == baseline.foreign([""]) == ""


def test_recording_again_replaces_rows_of_the_same_kind_and_keeps_the_others():
    twice = (
        recorded([700.0]).merged(rows_of({WORLD: [40.0]}, when=2.0, versions={})).merged(rows_of({MATMUL: [720.0]}, when=3.0, versions={}))
    )
    assert (twice.healthy(MATMUL), twice.healthy(WORLD), len(twice.rows)) == (720.0, 40.0, 2)


def test_it_is_found_where_site_files_are_and_the_sites_own_word_comes_first(tmp_path):
    env = {"SLURMTRAIN_SITE_PATH": str(tmp_path / "sites"), "HOME": str(tmp_path / "home"), "SCRATCH": "/scratch"}
    (tmp_path / "home/.config/slurmtrain").mkdir(parents=True)
    (tmp_path / "sites").mkdir()
    assert baseline_path(site(), env) is None
    assert record_path(site(), env) == tmp_path / "sites/alps.baseline.json"
    (tmp_path / "home/.config/slurmtrain/alps.baseline.json").write_text("{}")
    assert baseline_path(site(), env) == tmp_path / "home/.config/slurmtrain/alps.baseline.json"
    assert record_path(site(), env) == baseline_path(site(), env)
    assert str(baseline_path(site(baseline="$SCRATCH/base.json"), env)) == "/scratch/base.json"
    with pytest.raises(ConfigError, match=r"preflight\.baseline"):
        baseline_path(site(baseline="$NOWHERE/base.json"), env)


def test_no_file_has_no_rows_and_a_damaged_one_is_said(tmp_path):
    assert read_baseline(None).rows == read_baseline(tmp_path / "none.json").rows == ()
    path = tmp_path / "alps.baseline.json"
    row = '{"metric":"matmul_tflops","size":1,"members":1,"device":["H100"],"value":1.0,"unit":"TFLOPS"}'
    for text in ("{", '{"v":1,"rows":[{"metric":"matmul_tflops"}]}', f'{{"v":1,"rows":[{row}]}}', '{"v":2,"rows":[]}', "[]", "[" * 100_000):
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"alps\.baseline\.json: .*record it again"):
            read_baseline(path)
