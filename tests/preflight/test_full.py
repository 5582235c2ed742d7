"""The full preflight against a pretended cluster: whatever is wrong is named, within its bounds, and the rest goes on."""

from __future__ import annotations

from itertools import pairwise
from math import log2

import pytest

from slurmtrain.preflight.baseline import Baseline, rows_of
from slurmtrain.preflight.finding import OUT
from tests.preflight.cluster import Cluster


def out(result) -> dict[str, str]:
    """Nodes that are out, and by which check."""
    return {node: one.check for node, one in result.bad.items()}


def recorded(n: int, tasks: int = 1, **more) -> Baseline:
    """What a healthy cluster of this size has."""
    healthy = Cluster(n, tasks, **more).measure(record=True)
    return Baseline().merged(rows_of(healthy.samples, when=1.0, versions={}))


@pytest.mark.parametrize(("nodes", "tasks"), [(1, 8), (2, 1), (3, 2), (8, 8), (64, 1)])
def test_a_healthy_cluster_has_no_finding(nodes, tasks):
    cluster = Cluster(nodes, tasks, preflight={"pairs_s": 100})
    result = cluster.measure()
    assert (result.findings, result.untested, result.interrupted) == ((), (), False)
    assert set(result.figures) == set(cluster.nodes)
    assert 675 < result.figures["n0"]["matmul_tflops"] <= 700
    assert result.seconds < 200
    if nodes <= 8:
        assert cluster.measure(recorded(nodes, tasks)).findings == ()


def test_a_slow_device_is_named_with_figures_after_three_tries():
    cluster = Cluster(4, 4)
    cluster.probes.slow_device["n2", 3] = 500.0
    result = cluster.measure()
    assert out(result) == {"n2": "matmul"}
    assert result.bad["n2"].item == "GPU 3"
    assert "TFLOPS is the median of 15 others" in result.bad["n2"].said
    assert [do for do, _ in cluster.probes.asked].count("matmul") == 3
    assert all(node != "n2" for one in cluster.rounds("reduce") for group in one for node in group), "it takes no further part"


def test_a_device_that_is_slow_once_is_not_named():
    cluster = Cluster(4, 4)
    cluster.probes.slow_device["n2", 3] = 500.0
    cluster.probes.before = lambda do: len(cluster.rounds("matmul")) >= 2 and cluster.probes.slow_device.clear()
    assert cluster.measure().findings == ()


def test_silent_corruption_is_found_by_the_product_of_most():
    cluster = Cluster(8, 8)
    cluster.probes.wrong_product = {("n5", 1)}
    result = cluster.measure()
    assert out(result) == {"n5": "matmul-result"}
    assert "63 devices" in result.bad["n5"].said
    two = Cluster(2)
    two.probes.wrong_product = {("n0", 0)}
    assert {one.grade for one in two.measure().findings} == {"unknown"}, "of two nobody can tell, and neither may start"


def test_devices_of_different_models_are_not_compared():
    cluster = Cluster(6)
    cluster.probes.devices = {"n5": "NVIDIA A100-SXM4-80GB"}
    cluster.probes.slow_device["n5", 0] = 270.0
    cluster.probes.wrong_product = {("n5", 0)}
    assert cluster.measure().findings == ()


@pytest.mark.parametrize("nodes", [8, 64])
def test_a_hung_node_costs_one_time_out(nodes):
    cluster = Cluster(nodes)
    healthy_s = cluster.measure().seconds
    hung = Cluster(nodes)
    hung.probes.hung = {"n3"}
    result = hung.measure()
    assert out(result) == {"n3": "matmul"}
    assert "no answer in 60 s" in result.bad["n3"].said
    assert result.seconds < healthy_s + 60 + 3


def test_a_node_that_hangs_in_the_all_reduce_is_out_and_the_others_are_proved():
    cluster = Cluster(8)
    cluster.probes.before = lambda do: do == "reduce" and cluster.probes.hung.add("n6")
    result = cluster.measure()
    assert out(result) == {"n6": "world-reduce"}
    assert cluster.rounds("reduce")[-1] == [tuple(n for n in cluster.nodes if n != "n6")]


@pytest.mark.parametrize("nodes", [8, 64])
def test_a_node_that_breaks_the_all_reduce_is_found_in_log2_n_plus_1_rounds(nodes):
    cluster = Cluster(nodes)
    cluster.probes.broken = {"n5"}
    result = cluster.measure()
    assert out(result) == {"n5": "world-reduce"}
    assert "connection reset" in result.bad["n5"].said
    rounds = cluster.rounds("reduce")
    told_apart = [rounds[0], *(one for before, one in pairwise(rounds) if one != before)]
    assert len(told_apart) <= log2(nodes) + 1 + 1, "and once more all that are left"
    assert told_apart[-1] == [tuple(n for n in cluster.nodes if n != "n5")]


def test_a_wrong_sum_is_believed_at_once():
    cluster = Cluster(8)
    cluster.probes.wrong_sum = {"n1"}
    result = cluster.measure()
    assert out(result) == {"n1": "world-reduce"}
    rounds = cluster.rounds("reduce")
    assert all(one != other for one, other in pairwise(rounds)), "no round twice"


@pytest.mark.parametrize("tasks", [1, 8])
def test_a_slow_link_is_found_against_the_baseline_by_the_search(tasks):
    baseline = recorded(8, tasks)
    cluster = Cluster(8, tasks)
    cluster.probes.slow_link["n4"] = 20.0
    result = cluster.measure(baseline)
    assert out(result) == {"n4": "world-reduce"}
    assert "the recorded baseline" in result.bad["n4"].said


def test_without_a_baseline_the_tournament_finds_it():
    cluster = Cluster(8)
    cluster.probes.slow_link["n4"] = 20.0
    result = cluster.measure()
    assert out(result) == {"n4": "pair"}
    assert "all 7 partners" in result.bad["n4"].said


@pytest.mark.parametrize("baseline", [False, True])
def test_of_a_slow_pair_the_later_node_is_out_and_the_other_stays(baseline):
    cluster = Cluster(8)
    cluster.probes.slow_pair[frozenset({"n2", "n6"})] = 4.0
    result = cluster.measure(recorded(8) if baseline else None)
    assert out(result) == {"n6": "pair"}
    one = result.bad["n6"]
    assert one.peer == "n2"
    assert "later of the two" in one.said


def test_a_node_with_two_slow_pairs_is_out_for_both():
    cluster = Cluster(8)
    for other in ("n1", "n7"):
        cluster.probes.slow_pair[frozenset({"n3", other})] = 4.0
    result = cluster.measure()
    assert out(result) == {"n3": "pair"}
    assert "more bad pairs" in result.bad["n3"].said
    assert cluster.rounds("reduce")[-1] == [tuple(n for n in cluster.nodes if n != "n3")], "those that are left are proved together"


def test_a_pair_that_does_not_speak_at_all_costs_a_few_time_outs():
    cluster = Cluster(8)
    cluster.probes.silent_pair = {frozenset({"n0", "n5"})}
    result = cluster.measure()
    assert out(result) == {"n5": "pair"}
    assert result.seconds < 300


def test_pairs_that_there_was_no_time_for_are_told():
    cluster = Cluster(64, preflight={"pairs_s": 20})
    result = cluster.measure()
    assert result.findings == ()
    tested = {frozenset(group) for one in cluster.rounds("pair") for group in one}
    assert len(result.untested) + len(tested) == 64 * 63 / 2
    assert not tested & {frozenset(pair) for pair in result.untested}
    none = Cluster(4, preflight={"pairs_s": 0})
    assert none.measure().findings == ()
    assert none.rounds("pair") == []


def test_a_world_that_fails_only_as_a_whole_keeps_all_out_and_says_why():
    cluster = Cluster(8)
    fault = cluster.probes._fault
    cluster.probes._fault = lambda group: "no route to host" if len(group) == 8 else fault(group)
    result = cluster.measure()
    assert set(out(result)) == set(cluster.nodes)
    assert "no node and no pair of them" in result.bad["n0"].said


def test_sockets_never_pass_where_infiniband_is_expected():
    cluster = Cluster(4, 2)
    cluster.probes.transport["n1"] = "Socket NVLS P2P"
    result = cluster.measure()
    assert out(result) == {"n1": "transport"}
    assert "sockets" in result.bad["n1"].said
    wanted = Cluster(4, 2, preflight={"expect": ["IB", "GPUDirect"]})
    wanted.probes.transport["n3"] = "IB NVLS P2P"
    assert "does not use GPUDirect" in wanted.measure().bad["n3"].said
    unsaid = Cluster(4, 2)
    unsaid.probes.transport["n2"] = ""
    assert [one.grade for one in unsaid.measure().findings] == ["unknown"] * 2
    plain = Cluster(4, 2, fabric={"kind": "ethernet"})
    plain.probes.transport["n1"] = "Socket"
    assert plain.measure().findings == ()


@pytest.mark.parametrize("nodes", [2, 5, 8])
def test_a_nic_below_80_percent_of_nominal_is_named_and_one_at_80_is_not(nodes):
    cluster = Cluster(nodes, noise=0.0)
    cluster.probes.slow_nic = {("n1", "mlx5_1"): 319.0}
    result = cluster.measure()
    assert out(result) == {"n1": "nic-rate"}
    assert "mlx5_1" in result.bad["n1"].said
    assert "319 of 400 Gbit/s" in result.bad["n1"].said
    fine = Cluster(nodes, noise=0.0)
    fine.probes.slow_nic = {("n1", "mlx5_1"): 320.0}
    assert fine.measure().findings == ()


def test_storage_that_fails_keeps_a_node_out_and_slow_storage_is_a_warning():
    cluster = Cluster(6)
    cluster.probes.full_disk, cluster.probes.slow_disk = {"n2"}, {"n4": 50.0}
    result = cluster.measure()
    assert out(result) == {"n2": "storage-rate"}
    assert [(one.node, one.grade) for one in result.findings if one.grade not in OUT] == [("n4", "warn")]


def test_a_node_whose_probe_does_not_start_is_out_and_is_not_waited_for_long():
    cluster = Cluster(8)
    cluster.probes.absent = {"n7"}
    result = cluster.measure()
    assert out(result) == {"n7": "probe"}
    assert result.bad["n7"].grade == "unknown"
    assert result.seconds < Cluster(8).measure().seconds + 40


@pytest.mark.parametrize("nodes", [8, 64])
def test_all_at_once(nodes):
    """One slow, one hung, one that breaks, one that computes wrong, one on sockets, and a slow pair."""
    cluster = Cluster(nodes, 2, preflight={"pairs_s": 200})
    probes = cluster.probes
    probes.slow_device["n0", 0], probes.wrong_product, probes.hung = 300.0, {("n1", 1)}, {"n2"}
    probes.broken, probes.transport["n4"] = {"n3"}, "Socket P2P"
    probes.slow_pair[frozenset({"n5", "n7"})] = 4.0
    result = cluster.measure()
    checks = {"n0": "matmul", "n1": "matmul-result", "n2": "matmul", "n3": "world-reduce", "n4": "transport"}
    assert out(result) == {**checks, "n7": "pair"}
    assert all(one.remedy for one in result.findings)
    assert result.seconds < 400


def test_a_probe_that_does_not_come_is_told_with_the_launchers_word_on_its_node():
    cluster = Cluster(12)
    cluster.probes.absent = {"n1"}
    said = "srun: error: n11: task 11: Exited with exit code 1\nsrun: error: n1: task 1: Killed\nsrun: error: see the log\n"
    result = cluster.measure(words=lambda: said)
    assert out(result) == {"n1": "probe"}
    assert result.bad["n1"].said.endswith(" s: srun: error: n1: task 1: Killed")


def test_after_full_s_what_could_not_be_measured_is_unknown():
    cluster = Cluster(4, preflight={"full_s": 8})
    cluster.probes.before = lambda do: cluster.clock.advance(5.0)
    result = cluster.measure()
    assert {one.grade for one in result.findings} == {"unknown"}
    assert set(out(result)) == set(cluster.nodes)
    assert "preflight.full_s" in result.findings[0].said
    assert result.seconds < 20


def test_who_is_called_away_concludes_nothing():
    cluster = Cluster(8)
    cluster.probes.slow_device["n2", 0] = 100.0
    result = cluster.measure(called=lambda: len(cluster.rounds("reduce")) > 0)
    assert (result.interrupted, result.findings) == (True, ())


def test_what_is_skipped_is_not_measured_and_what_is_tolerated_keeps_nobody_out():
    cluster = Cluster(6, 2, preflight={"skip": ["pair", "nic-rate", "storage-rate"], "tolerate": ["matmul"]})
    cluster.probes.slow_device["n2", 0] = 100.0
    result = cluster.measure()
    assert [(one.node, one.grade) for one in result.findings] == [("n2", "warn")]
    assert {do for do, _ in cluster.probes.asked} == {"matmul", "reduce", "transport"}
    alone = Cluster(6)
    alone.measure(request=alone.request(only=("storage-rate",)))
    assert {do for do, _ in alone.probes.asked} == {"storage"}


def test_a_baseline_of_other_hardware_is_said_and_not_used():
    baseline = recorded(8)
    cluster = Cluster(8)
    cluster.probes.tflops = 200.0
    cluster.probes.devices = dict.fromkeys(cluster.nodes, "NVIDIA A100-SXM4-80GB")
    result = cluster.measure(baseline)
    assert result.findings == ()
    assert any("does not count here" in note for note in result.notes)


def test_all_slow_alike_is_seen_against_the_baseline_alone():
    baseline = recorded(8)
    cluster = Cluster(8)
    cluster.probes.tflops = 500.0
    assert cluster.measure().findings == ()
    assert set(out(cluster.measure(baseline))) == set(cluster.nodes)


def test_a_record_has_every_size_that_a_search_meets():
    sizes = {(row.metric, row.members) for row in recorded(8, 2).rows}
    assert sizes == {
        ("matmul_tflops", 1),
        ("domain_reduce_gb_s", 2),
        *(("world_reduce_gb_s", members) for members in (8, 4, 2)),
        ("pair_gb_s", 2),
        ("write_mb_s", 8),
        ("read_mb_s", 8),
    }


def test_on_cpus_a_third_of_the_peers_is_the_bound():
    cluster = Cluster(6, device="cpu")
    cluster.probes.slow_device["n1", 0] = 0.45 * cluster.probes.tflops
    assert cluster.measure().findings == ()
    cluster.probes.slow_device["n1", 0] = 0.1 * cluster.probes.tflops
    assert out(cluster.measure()) == {"n1": "matmul"}
    assert {do for do, _ in cluster.probes.asked} == {"matmul", "reduce", "pair", "storage"}


@pytest.mark.parametrize("seed", range(5))
def test_ten_preflights_of_a_loaded_cpu_cluster_blame_nobody(seed):
    """Any rate may be at a third of what it is when the machine is idle."""
    cluster = Cluster(6, device="cpu", noise=0.67)
    cluster.probes.chance.seed(seed)
    for _ in range(10):
        assert [one for one in cluster.measure().findings if one.grade in OUT] == []


def test_a_pair_that_is_slow_once_is_not_named():
    cluster = Cluster(8)
    cluster.probes.slow_pair[frozenset({"n2", "n6"})] = 4.0
    cluster.probes.before = lambda do: len(cluster.rounds("pair")) >= 7 and cluster.probes.slow_pair.clear()
    assert cluster.measure().findings == ()
    assert len(cluster.rounds("pair")) > 7, "it was measured again"


@pytest.mark.parametrize("lasting", [False, True])
def test_what_fails_once_is_tried_once_more(lasting):
    cluster = Cluster(4)
    cluster.probes.broken = {"n1"}
    cluster.probes.before = lambda do: not lasting and do == "reduce" and cluster.rounds("reduce") and cluster.probes.broken.clear()
    assert out(cluster.measure()) == ({"n1": "world-reduce"} if lasting else {})
    rounds = cluster.rounds("reduce")
    assert rounds[:2] == [[tuple(cluster.nodes)]] * 2
    assert (len(rounds) == 2) != lasting
    assert rounds[2:3] == ([[("n0", "n1"), ("n2", "n3")]] if lasting else [])


def test_where_all_nodes_are_one_machine_devices_and_pairs_have_it_for_themselves_and_no_baseline_counts():
    baseline = recorded(6, device="cpu")
    cluster = Cluster(6, device="cpu")
    cluster.probes.tflops = cluster.probes.node_gb_s = cluster.probes.pair_gb_s = 1.0
    result = cluster.measure(baseline)
    assert result.findings == ()
    assert any("one machine" in note for note in result.notes)
    assert {len(groups) for do, groups in cluster.probes.asked if do in {"matmul", "pair"}} == {1}
    apart = Cluster(6, device="cpu", fabric={"kind": "ethernet"})
    apart.probes.tflops = 1.0
    assert set(out(apart.measure(recorded(6, device="cpu", fabric={"kind": "ethernet"})))) == set(apart.nodes)
    assert len(apart.probes.asked[0][1]) == 6


def test_a_load_that_comes_while_pairs_are_measured_again_blames_no_pair():
    """At first one pair has bad luck; from then on all are slower than it was."""
    cluster = Cluster(6, device="cpu")
    cluster.probes.slow_pair[frozenset({"n1", "n2"})] = 8.0

    def load(do: str) -> None:
        if len(cluster.rounds("pair")) >= 15:
            cluster.probes.slow_pair.clear()
            cluster.probes.pair_gb_s = 4.0

    cluster.probes.before = load
    assert cluster.measure().findings == ()
    assert len(cluster.rounds("pair")) > 15


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("nodes", [4, 6])
def test_a_slow_pair_of_few_nodes_is_measured_again_beside_others(nodes, device):
    cluster = Cluster(nodes, device=device)
    cluster.probes.slow_pair[frozenset({"n1", "n3"})] = 4.0
    assert out(cluster.measure()) == {"n3": "pair"}
