"""Keys of [recovery.numerics] and [recovery.corruption] that would do nothing are refused."""

from __future__ import annotations

import pytest

from slurmtrain.config.checks import check_job
from slurmtrain.config.job import JobConfig
from slurmtrain.errors import ConfigError
from tests.train.runs import make_job, make_site


def job(tmp_path, gpus=1, recovery=None, **layout):
    plain = make_job(tmp_path, gpus=gpus, training={"micro_batch": 1}, **layout).model_dump()
    return JobConfig.model_validate({**plain, "recovery": recovery or {}})


@pytest.mark.parametrize(
    ("numerics", "words"),
    [
        ({"older_by": 5}, r"recovery.numerics.older_by = 5: is of going back .* rollbacks"),
        ({"skip_data": True}, r"recovery.numerics.skip_data = True: is of going back"),
        ({"lr_factor": 0.5}, r"recovery.numerics.lr_factor = 0.5: is of going back"),
        ({"rollbacks": 1, "for_steps": 5}, r"recovery.numerics.for_steps = 5: is of lr_factor"),
        ({"skip_steps": 1, "spike_window": 5}, r"recovery.numerics.spike_window = 5: is of spike_zscore"),
    ],
)
def test_what_does_nothing(tmp_path, numerics, words):
    with pytest.raises(ConfigError, match=words):
        check_job(job(tmp_path, recovery={"numerics": numerics}), make_site())


def test_what_does_something(tmp_path):
    all_of_it = {"rollbacks": 1, "older_by": 5, "skip_data": True, "lr_factor": 0.5, "for_steps": 5, "spike_zscore": 6, "spike_window": 50}
    check_job(job(tmp_path, recovery={"numerics": {**all_of_it, "skip_steps": 2}}), make_site())


@pytest.mark.parametrize(
    ("gpus", "layout", "words"),
    [
        (1, {}, "use more data-parallel ranks"),
        (2, {"tp": 2}, "use more data-parallel ranks"),
        (2, {"pp": 2}, "use more data-parallel ranks"),
        (2, {"dp_mode": "fsdp"}, "dp_shard"),
        (2, {"dp_mode": "zero2"}, "dp_shard"),
    ],
)
def test_nothing_could_be_compared(tmp_path, gpus, layout, words):
    with pytest.raises(ConfigError, match=rf"recovery.corruption.every_steps = 10: no two ranks hold the same.*{words}"):
        check_job(job(tmp_path, gpus, {"corruption": {"every_steps": 10}}, **layout), make_site())


@pytest.mark.parametrize(
    ("gpus", "layout"),
    [(2, {}), (2, {"cp": 2}), (4, {"tp": 2}), (2, {"dp_mode": "zero1"}), (4, {"dp_mode": "fsdp", "dp_shard": 2})],
)
def test_something_can_be_compared(tmp_path, gpus, layout):
    check_job(job(tmp_path, gpus, {"corruption": {"every_steps": 10}}, **layout), make_site())
