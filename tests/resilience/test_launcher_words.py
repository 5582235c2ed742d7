"""srun's and mpiexec's words about tasks that ended: recorded output, and the world ranks that it speaks of."""

from __future__ import annotations

from slurmtrain.resilience.classify import Death
from slurmtrain.resilience.judgement import last_words
from slurmtrain.resilience.launcher_words import deaths_in, hydra_end

# Slurm 22.05, two nodes of four tasks, --kill-on-bad-exit=1: task 3 exits with 7, the others sleep.
EXIT_7 = """\
srun: error: n1: task 3: Exited with exit code 7
srun: launch/slurm: _step_signal: Terminating StepId=1.1
srun: error: n1: tasks 0-2: Terminated
srun: error: n2: tasks 4-7: Terminated
srun: Force Terminated StepId=1.1
"""
# The same, but a peer was quicker to tell of it than slurmstepd of task 3.
FOLLOWER_FIRST = """\
srun: error: n2: task 2: Exited with exit code 1
srun: launch/slurm: _step_signal: Terminating StepId=4.1
srun: error: n2: task 3: Exited with exit code 7
srun: error: n1: tasks 0-1: Exited with exit code 1
"""
SEGFAULT = """\
srun: error: n1: task 3: Segmentation fault
srun: launch/slurm: _step_signal: Terminating StepId=1.3
srun: error: n1: tasks 0-2: Terminated
"""
BOTH_NODES = "srun: error: n[1-2]: tasks 0-3: Exited with exit code 1\n"
NODE_FAILURE = """\
srun: error: n1: tasks 0-1: Exited with exit code 1
srun: launch/slurm: _step_signal: Terminating StepId=3.1
srun: error: Node failure on n2
"""
# Slurm 22.05: slurmstepd of n2 was killed; srun gives up and kills the tasks of n1.
STEPD_KILLED = """\
srun: error: _server_write write failed: Bad file descriptor
srun: error: Aborting, io error and missing step on node 1
srun: Job step aborted: Waiting up to 7 seconds for job step to finish.
srun: error: n1: tasks 0-1: Killed
srun: launch/slurm: _step_signal: Terminating StepId=8.1
srun: error: Timed out waiting for job step to complete
"""
HYDRA = """\
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 4711 RUNNING AT box
=   EXIT CODE: 7
===================================================================================
"""


def test_the_task_that_exited_and_not_those_that_srun_ended():
    assert deaths_in(EXIT_7, ("n1", "n2"), 4) == {3: Death(7, "exited with code 7")}


def test_a_code_counts_also_after_srun_began_to_end_the_step():
    found = deaths_in(FOLLOWER_FIRST, ("n1", "n2"), 2)
    assert {rank: death.code for rank, death in found.items()} == {0: 1, 1: 1, 2: 1, 3: 7}


def test_a_signal_by_its_name():
    assert deaths_in(SEGFAULT, ("n1", "n2"), 4) == {3: Death(None, "Segmentation fault")}


def test_what_srun_killed_when_it_gave_up_is_no_cause():
    assert deaths_in(STEPD_KILLED, ("n1", "n2"), 2) == {}


def test_world_ranks_follow_the_order_of_the_world_not_that_of_srun():
    assert list(deaths_in(EXIT_7, ("n2", "n1"), 4)) == [7]
    assert sorted(deaths_in(BOTH_NODES, ("n2", "n1"), 2)) == [0, 1, 2, 3]


def test_several_hosts_in_one_line_each_get_their_tasks():
    words = "srun: error: n[1-2]: tasks 1,2: Exited with exit code 5\n"
    assert sorted(deaths_in(words, ("n1", "n2"), 2)) == [1, 2]
    assert sorted(deaths_in(words, ("n2", "n1"), 2)) == [0, 3]


def test_other_lines_and_nodes_of_another_step_say_nothing():
    assert list(deaths_in(NODE_FAILURE, ("n1", "n2"), 2)) == [0, 1]
    assert deaths_in("srun: error: n9: task 0: Exited with exit code 7\nwords\n", ("n1",), 2) == {}
    assert deaths_in("", ("n1",), 2) == {}


# mpich 5.0.2: the ranks of one emulated node get SIGKILL.
HYDRA_KILLED = """\
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 13502 RUNNING AT box
=   EXIT CODE: 9
=   CLEANING UP REMAINING PROCESSES
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
===================================================================================
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)
This typically refers to a problem with your application.
Please see the FAQ page for debugging suggestions
"""


def test_mpiexec_names_a_code_or_a_signal_and_no_rank():
    assert hydra_end(HYDRA) == "exit code 7"
    assert hydra_end(HYDRA_KILLED) == "killed (signal 9)"
    early = HYDRA_KILLED.partition("YOUR APPLICATION TERMINATED")[0]
    assert hydra_end(early) == "exit code 9, or killed (signal 9)", "seen before hydra tells which"
    assert hydra_end(EXIT_7) == ""


def test_hydras_advice_is_no_cause(tmp_path):
    (tmp_path / "node-000.log").write_text(HYDRA_KILLED)
    assert last_words(tmp_path, "") == "killed (signal 9)"
    (tmp_path / "node-000.log").write_text("ValueError: boom\n" + HYDRA_KILLED)
    assert last_words(tmp_path, "") == "ValueError: boom; killed (signal 9)"
