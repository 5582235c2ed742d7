"""CliSlurm: what it asks, what it makes of the answers, and how long it tries (expected messages as Slurm 22.05 printed them)."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmtrain.errors import SlurmError, SlurmUnavailableError, SubmitUnknownError
from slurmtrain.slurm.cli_client import CliSlurm
from tests.fakes.clock import FakeClock
from tests.fakes.shell import FakeShell, Said

DATA = Path(__file__).parent / "data/2205"
ENV = {"PATH": "/bin", "HOME": "/nowhere", "SLURM_CONF": "/odd/slurm.conf", "SLURM_NTASKS": "2", "SBATCH_QOS": "x", "SQUEUE_FORMAT": "%i"}
SCRIPT = Path("/runs/a b/job.sbatch")
DOWN = Said("", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n", 1)
LATE = Said("", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n", 1)
LIMIT = Said(
    "",
    "sbatch: error: AssocMaxSubmitJobLimit\n"
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)\n",
    1,
)
BUSY = Said("", "sbatch: error: Batch job submission failed: Resource temporarily unavailable\n", 1)
NO_JOB = Said("", "slurm_load_jobs error: Invalid job id specified\n", 1)
NO_MEMBER = Said("Job 12_1 not found\n", "", 1)


def recorded(name: str) -> str:
    return (DATA / f"{name}.txt").read_text()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def client_of(tmp_path, clock):
    def make(answers, **more):
        shell = FakeShell(answers)
        return CliSlurm(shell, clock, ENV, cache_dir=tmp_path / "cache", **more), shell

    return make


def test_submit_gives_the_id_and_sbatch_sees_no_variables_of_slurm(client_of):
    client, shell = client_of({("sbatch",): "12\n"})
    assert client.submit(SCRIPT, options=["--nodes=2", "--comment=it's $HOME"]) == "12"
    (call,) = shell.calls
    assert call.argv == ("sbatch", "--parsable", "--nodes=2", "--comment=it's $HOME", "/runs/a b/job.sbatch")
    assert call.env == {"PATH": "/bin", "HOME": "/nowhere", "SLURM_CONF": "/odd/slurm.conf", "SQUEUE_FORMAT": "%i"}


@pytest.mark.parametrize(("printed", "job"), [("12;devcluster\n", "12"), ("12;lux\n", "12;lux")])
def test_the_cluster_is_part_of_the_id_only_where_it_is_another(client_of, printed, job):
    client, _ = client_of({("sbatch",): printed, ("scontrol", "show", "config"): recorded("config")})
    assert client.submit(SCRIPT) == job


def test_an_id_is_never_lost_because_a_later_question_fails(client_of):
    client, _ = client_of({("sbatch",): "12;lux\n", ("scontrol",): DOWN})
    assert client.submit(SCRIPT) == "12;lux"


def test_a_job_on_another_cluster_is_asked_for_there(client_of):
    client, shell = client_of({("scontrol",): recorded("job_running"), ("squeue",): "", ("scancel",): "", ("sacct",): ""})
    client.job("1;lux")
    client.cancel("1;lux")
    client.requeue("1;lux")
    client.steps("1;lux")
    client.finished_job("1;lux")
    assert all(call.argv[1] == "--clusters=lux" and "1" in call.argv for call in shell.calls)
    assert len(shell.calls) == 5


@pytest.mark.parametrize("refusal", [LIMIT, BUSY, DOWN], ids=["submit limit", "busy", "controller down"])
def test_a_job_that_was_surely_refused_is_submitted_again_and_once_and_a_person_hears_why_it_takes_long(client_of, clock, refusal):
    said: list[str] = []
    client, shell = client_of({("sbatch",): [refusal, refusal, "13\n"]}, say=said.append)
    assert client.submit(SCRIPT) == "13"
    assert [line.rpartition("; ")[2] for line in said] == ["again in 2 s (Ctrl-C gives up)", "again in 4 s (Ctrl-C gives up)"]
    assert all(line.startswith("sbatch: ") for line in said)
    assert len(shell.calls) == 3
    assert clock.slept == [2, 4]


@pytest.mark.parametrize(
    ("refusal", "kind", "words"),
    [
        (LIMIT, SlurmError, "sbatch: Batch job submission failed: Job violates accounting/QOS policy"),
        (BUSY, SlurmError, "sbatch: Batch job submission failed: Resource temporarily unavailable"),
        (DOWN, SlurmUnavailableError, "sbatch: Slurm does not answer: Unable to contact slurm controller"),
    ],
)
def test_the_tries_are_bounded_and_the_last_words_slurms_own(client_of, clock, refusal, kind, words):
    client, shell = client_of({("sbatch",): refusal})
    with pytest.raises(kind, match=words):
        client.submit(SCRIPT)
    assert len(shell.calls) == 6
    assert sum(clock.slept) == 60


def test_a_submit_limit_that_stands_is_named_with_what_to_do(client_of):
    """C58."""
    client, _ = client_of({("sbatch",): LIMIT})
    with pytest.raises(SlurmError, match=r"AssocMaxSubmitJobLimit, still so after 60 s: nothing was submitted; try again when a job"):
        client.submit(SCRIPT)


@pytest.mark.parametrize(
    "answer",
    [
        LATE,
        Said("", "", 0, seconds=1000),
        Said("", "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received\n", 1),
    ],
    ids=["socket", "limit", "zero bytes"],
)
def test_where_sbatch_may_have_been_heard_it_is_never_tried_again(client_of, answer):
    """Slurm took a job 30 s after its sbatch had given up (tried): a second try would double it."""
    client, shell = client_of({("sbatch",): answer})
    with pytest.raises(SubmitUnknownError, match="look at `squeue --me` before you submit again"):
        client.submit(SCRIPT)
    assert len(shell.calls) == 1


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "sbatch: error: invalid partition specified: x\nsbatch: error: Batch job submission failed: Invalid partition name specified\n",
            "sbatch: Batch job submission failed: Invalid partition name specified",
        ),
        ("sbatch: unrecognized option '--foo'\nTry \"sbatch --help\" for more information\n", "sbatch: unrecognized option '--foo'"),
        ("sbatch: error: Unable to open file /nope\n", "sbatch: Unable to open file /nope"),
        ("sbatch: error: Problem talking to database\nsbatch: error: 'x' can't be reached now\n", "sbatch: 'x' can't be reached now"),
        ("", "sbatch: ended with code 1"),
    ],
)
def test_a_refusal_is_one_line_in_slurms_words(client_of, said, words):
    client, shell = client_of({("sbatch",): Said("", said, 1)})
    with pytest.raises(SlurmError) as caught:
        client.submit(SCRIPT)
    assert str(caught.value) == words
    assert not isinstance(caught.value, SlurmUnavailableError)
    assert len(shell.calls) == 1


@pytest.mark.parametrize("ask", [lambda c: c.submit(SCRIPT), lambda c: c.job("1"), lambda c: c.my_jobs(), lambda c: c.cancel("1")])
def test_without_slurms_commands_it_says_where_to_be(client_of, ask):
    client, _ = client_of({})
    with pytest.raises(SlurmError, match="not found: are you on a login node"):
        ask(client)


def test_one_job(client_of):
    client, shell = client_of({("scontrol", "show", "job", "-o", "1"): recorded("job_running")})
    assert client.job("1").state == "RUNNING"
    assert shell.calls[0].env["SLURM_TIME_FORMAT"] == "%s"
    assert "SQUEUE_FORMAT" not in shell.calls[0].env


@pytest.mark.parametrize(("said", "job_id"), [(NO_JOB, "9999"), (NO_MEMBER, "12_1")])
def test_a_job_that_slurmctld_has_forgotten_is_none(client_of, said, job_id):
    client, _ = client_of({("scontrol",): said})
    assert client.job(job_id) is None


def test_an_array_by_its_id_is_what_still_waits_and_a_member_by_its_own(client_of):
    client, _ = client_of(
        {
            ("scontrol", "show", "job", "-o", "2"): recorded("job_array"),
            ("scontrol", "show", "job", "-o", "2_3"): recorded("job_array_waiting_member"),
            ("scontrol", "show", "job", "-o", "2_2"): recorded("job_array").partition("\n")[0],
        }
    )
    assert client.job("2").array == ("2", "2-3%1")
    assert (client.job("2_3").job_id, client.job("2_3").array) == ("2_3", ("2", "3"))
    assert (client.job("2_2").job_id, client.job("2_2").array, client.job("2_2").state) == ("2_2", ("2", "2"), "PENDING")


@pytest.mark.parametrize("job", ["", "x", "12.0", "12_", "12_[1-2]", "-12", "12 13", "12;", "12;a b"])
def test_what_is_no_job_id_never_reaches_slurm(client_of, job):
    client, shell = client_of({("scontrol",): "", ("scancel",): "", ("squeue",): "", ("sacct",): ""})
    for ask in (client.job, client.requeue, client.cancel, client.steps, client.finished_job):
        with pytest.raises(SlurmError, match="is not a job id"):
            ask(job)
    assert shell.calls == []


def test_after_no_answer_slurm_is_left_alone_for_a_while_and_longer_each_time(client_of, clock):
    client, shell = client_of({("scontrol",): [DOWN, DOWN, recorded("job_running"), DOWN]})

    def ask() -> str:
        try:
            return client.job("1").state
        except SlurmUnavailableError as error:
            return str(error)

    first = ask()
    assert first == "scontrol: Slurm does not answer: Unable to contact slurm controller (connect failure)"
    assert ask() == f"{first} (asked again in 5 s)"
    assert len(shell.calls) == 1
    clock.advance(5)
    assert ask() == first
    clock.advance(9)
    assert ask() == f"{first} (asked again in 1 s)"
    clock.advance(1)
    assert ask() == "RUNNING"
    assert ask() == first
    assert ask() == f"{first} (asked again in 5 s)"
    assert len(shell.calls) == 4


def test_a_dead_slurmdbd_does_not_silence_slurmctld(client_of):
    gone = "sacct: error: slurm_persist_conn_open: failed to open persistent connection to host:localhost:6819: Connection refused\n"
    client, _ = client_of({("sacct",): Said("", gone, 1), ("scontrol",): recorded("job_running")})
    with pytest.raises(SlurmUnavailableError):
        client.finished_job("1")
    assert client.job("1").state == "RUNNING"


@pytest.mark.parametrize("answers", [{}, {("sacct",): Said("", "Slurm accounting storage is disabled\n", 1)}], ids=["no sacct", "disabled"])
def test_without_accounting_nothing_is_remembered(client_of, answers):
    client, _ = client_of(answers)
    assert client.finished_job("1") is None


def test_accounting_is_asked_for_all_records_of_the_job(client_of):
    client, shell = client_of({("sacct",): recorded("sacct_requeued")})
    assert client.finished_job("6").restarts == 1
    assert {"-X", "--duplicates", "-n", "-P", "-j", "6"} < set(shell.calls[0].argv)


def test_a_deed_is_tried_a_few_times_where_nobody_answers(client_of, clock):
    client, shell = client_of({("scontrol",): [DOWN, DOWN, ""]})
    client.requeue("1")
    assert [call.argv for call in shell.calls] == [("scontrol", "requeue", "1")] * 3
    assert clock.slept == [1, 5]
    client, shell = client_of({("scancel",): DOWN})
    with pytest.raises(SlurmUnavailableError):
        client.cancel("1")
    assert len(shell.calls) == 3


def test_a_requeue_that_slurm_heard_before_its_answer_was_lost_is_done(client_of):
    client, _ = client_of({("scontrol",): [DOWN, Said("", "Job is pending execution for job 10\n", 1)]})
    client.requeue("10")


@pytest.mark.parametrize("said", ["Invalid job id specified for job 999\n", "Access/permission denied for job 10\n"])
def test_a_requeue_that_slurm_refuses_is_said_at_once(client_of, said):
    client, shell = client_of({("scontrol",): Said("", said, 1)})
    with pytest.raises(SlurmError, match=said.strip()):
        client.requeue("10")
    assert len(shell.calls) == 1


@pytest.mark.parametrize(
    ("how", "argv"),
    [
        ({}, ("scancel", "12_3")),
        ({"signal": "USR2", "batch": True}, ("scancel", "--batch", "--signal=USR2", "12_3")),
        ({"step": "0", "signal": "TERM"}, ("scancel", "--signal=TERM", "12_3.0")),
    ],
)
def test_what_scancel_is_told(client_of, how, argv):
    client, shell = client_of({("scancel",): ""})
    client.cancel("12_3", **how)
    assert shell.calls[0].argv == argv


@pytest.mark.parametrize(
    "said",
    [
        "scancel: error: Kill job error on job step id 6: Invalid job id specified\n",
        "scancel: error: Kill job error on job step id 6: No error\n",
    ],
)
def test_what_has_ended_cannot_be_cancelled_and_that_is_no_fault(client_of, said):
    client, shell = client_of({("scancel",): Said("", said, 225)})
    client.cancel("6", step="77")
    assert len(shell.calls) == 1


def test_a_step_is_signalled_once_whatever_its_nodes_say(client_of, clock):
    said = "scancel: error: Kill job error on job step id 3: Communication connection failure\n"
    client, shell = client_of({("scancel",): Said("", said, 233)})
    with pytest.raises(SlurmUnavailableError, match="Communication connection failure"):
        client.cancel("3", step="0", signal="TERM")
    assert (len(shell.calls), clock.slept) == (1, [])


def test_a_step_is_a_number_or_a_word_of_slurms(client_of):
    client, _ = client_of({("scancel",): ""})
    with pytest.raises(SlurmError, match="not a step"):
        client.cancel("6", step="0 7")


def test_nodes_in_the_order_asked_and_without_the_unknown(client_of):
    client, shell = client_of({("scontrol", "show", "node"): Said(recorded("nodes") + "Node n99 not found\n", "", 1)})
    assert [node.name for node in client.nodes(["n4", "n99", "n1"])] == ["n4", "n1"]
    assert shell.calls[0].argv[-1] == "n[1,4,99]"
    assert client.nodes([]) == []
    assert len(shell.calls) == 1


@pytest.mark.parametrize(
    "answer", [Said("No topology information available\n"), Said("", "topology/default is not supported\n", 1), Said("")]
)
def test_a_cluster_without_topology_has_places_without_leaf(client_of, answer):
    client, _ = client_of({("scontrol", "show", "topology"): answer})
    assert [(place.node, place.leaf, place.block) for place in client.places(["n1"])] == [("n1", "", "")]


def test_the_configuration_is_read_once(client_of):
    client, shell = client_of({("scontrol", "show", "config"): recorded("config")})
    assert (client.config_value("SlurmdTimeout"), client.config_value("KillWait"), client.config_value("Gone")) == ("10 sec", "5 sec", None)
    assert len(shell.calls) == 1


def test_squeue_is_asked_once_per_10_seconds(client_of, clock):
    client, shell = client_of({("squeue",): recorded("squeue")})
    ages = []
    for seconds in (0, 4, 5, 2):
        clock.advance(seconds)
        age_s, found = client.my_jobs()
        ages.append(age_s)
        assert "2_1" in {info.job_id for info in found}
    assert ages == [0, 4, 9, 0]
    assert len(shell.calls) == 2
    assert {"--me", "-r"} < set(shell.calls[0].argv)
    client.my_jobs(max_age_s=0)
    assert len(shell.calls) == 3


def test_steps_of_a_job_that_is_gone_are_none(client_of):
    client, _ = client_of({("squeue",): NO_JOB})
    assert client.steps("9999") == []
