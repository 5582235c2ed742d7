"""Whether a job outlives its nodes, row by row, and spares that would be of no use."""

from __future__ import annotations

import pytest

from slurmtrain.config.keeping import check_spares, outlives_nodes
from slurmtrain.errors import ConfigError
from tests.resilience.runs import job_of, site_of


def pair(*, commands: bool = True, recovery=None, **slurm):
    job = job_of("run", nodes=2, gpus=2, steps=1, recovery=recovery, **slurm)
    return job, site_of("srun", 2, slurm={"mpi": "pmi2", "gpus_option": "", "commands_on_nodes": commands})


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ({}, False),
        ({"spares": 1}, True),
        ({"recovery": {"elastic": True}}, True),
        ({"recovery": {"elastic": True}, "commands": False}, False),
        ({"spares": 1, "continuation": "chain"}, False),
        ({"recovery": {"elastic": True, "in_place": False}}, False),
    ],
)
def test_no_kill_where_there_is_something_to_go_on_with(asked, kept):
    assert outlives_nodes(*pair(**asked)) == kept


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"spares": 1, "commands": False}, "no Slurm commands"),
        ({"spares": 2, "recovery": {"in_place": False}}, "recovery.in_place"),
    ],
)
def test_spares_that_nobody_could_use_are_refused_with_the_key(asked, says):
    with pytest.raises(ConfigError, match=rf"slurm\.spares = \d.*{says}"):
        check_spares(*pair(**asked))


def test_spares_of_a_chain_need_no_commands_on_nodes():
    check_spares(*pair(spares=1, commands=False, continuation="chain"))
    check_spares(*pair(spares=0, commands=False))
