"""What the checks of GPUs make of real machines: healthy ones are left in peace, and of a broken one its trouble is named, no more."""

from __future__ import annotations

import pytest

from slurmtrain.clock import SystemClock
from slurmtrain.preflight.checks.gpu_model import fits
from slurmtrain.preflight.checks.nvlink_links import LINKS
from slurmtrain.preflight.gather import gather
from slurmtrain.preflight.registry import checks_for, sources_for
from slurmtrain.preflight.sources.nvlink import parse_links
from slurmtrain.preflight.sources.xid import events, records
from tests.preflight.nvidia_shim import Node, changed, findings, nvlink, recorded, request, side_by_side, smi_facts

H100 = side_by_side(recorded("h100.xml"), 8)
OURS = tuple(check.name for check in checks_for(request()) if check.source in {"gpus", "nvlink", "xid"})


def told(logs: dict[str, str], gpu: str | None = "NVIDIA H100 SXM", gpus: int = 8, **site):
    """(node, check, grade) of all findings about nodes whose nvidia-smi prints these logs."""
    facts = {node: {"gpus": smi_facts(log)} for node, log in logs.items()}
    only = tuple(name for name in OURS if name.startswith("gpu-") and name != "gpu-xid")
    return findings(facts, request(gpu, gpus, only=only, **site))


def short(found):
    return [(one.node, one.check, one.grade) for one in found]


def linked(statuses: dict[str, str], gpu: str | None, gpus: int):
    facts = {node: {"nvlink": {"links": parse_links(text), "errors": {}, "uptime_s": 1e6}} for node, text in statuses.items()}
    return findings(facts, request(gpu, gpus, only=("nvlink-links", "nvlink-errors")))


def test_a_healthy_node_of_eight_has_no_trouble_from_its_programs_to_its_verdict(tmp_path):
    node = Node(tmp_path, clock=SystemClock()).says("nvidia-smi -q -x", H100)
    node.says("nvidia-smi nvlink -s", nvlink(recorded("nvlink-h100.txt"), 8)).says("dmesg", recorded("dmesg-application.txt"))
    node.says("nvidia-smi nvlink -e", nvlink(recorded("nvlink-errors-h100.txt"), 8))
    asked = request(only=OURS)
    found = gather(sources_for(asked), node.machine(), asked, clock=SystemClock())
    assert (sorted(found.facts), found.unknown) == (["gpus", "nvlink", "xid"], {})
    assert findings({"n1": found.facts}, asked) == []


@pytest.mark.parametrize(
    ("name", "gpu", "expected"),
    [
        ("h100.xml", "NVIDIA H100 SXM", []),
        ("h200.xml", "NVIDIA H200 SXM", []),
        ("h800.xml", None, [("n1", "gpu-ecc", "warn")]),
        ("a100-mig.xml", "NVIDIA A100 SXM", [("n1", "gpu-mig", "fail"), ("n1", "gpu-persistence", "warn")]),
        ("a10-power-brake.xml", None, [("n1", "gpu-throttle", "fail")]),
        ("rtx-pro-6000-busy.xml", "NVIDIA RTX PRO 6000", [("n1", "gpu-busy", "fail"), ("n1", "gpu-ecc", "warn")]),
    ],
)
def test_two_nodes_of_each_recorded_machine(name, gpu, expected):
    """What is the same on both and keeps nobody out is told once; what keeps out, of each."""
    log = side_by_side(recorded(name), 4)
    both = [(node, check, grade) for node in ("n1", "n2") for _, check, grade in expected if node == "n1" or grade == "fail"]
    assert short(told({"n1": log, "n2": log}, gpu, 4)) == both


def test_the_same_trouble_of_several_gpus_is_one_line():
    log = H100
    for index in (0, 1, 2, 5):
        log = changed(log, index, current_link_width="8x")
    assert [(one.item, one.said) for one in told({"n1": log})] == [("GPUs 0-2,5", "PCIe with 8 lanes of 16")]


def test_hardware_that_says_why_it_slows_down_is_told_with_that():
    assert [one.said for one in told({"n1": recorded("a10-power-brake.xml")}, None, 1)] == ["the node's power brake slows it down"]


def test_of_two_nodes_that_differ_the_later_is_told_and_the_slower_slot():
    other = changed(H100.replace("560.35.03", "535.161.08"), 2, max_link_gen="4", current_link_gen="4")
    assert short(told({"n1": other, "n2": H100})) == [("n1", "gpu-pcie", "fail"), ("n2", "gpu-driver", "fail")]


def test_ecc_that_is_off_everywhere_is_a_choice_and_on_some_a_fault():
    off = H100.replace("<current_ecc>Enabled", "<current_ecc>Disabled")
    assert [str(one) for one in told({"n1": off, "n2": off, "n3": off})] == [
        "gpu-ecc: ECC is off (and on 2 other nodes): `nvidia-smi -e 1` and a reset; a GPU without it computes on with wrong bits"
    ]
    assert short(told({"n1": H100, "n2": off, "n3": H100})) == [("n2", "gpu-ecc", "fail")]
    assert short(told({"n1": off, "n2": H100})) == [("n1", "gpu-ecc", "fail")]


def test_a_row_that_waits_is_no_fault_where_its_page_is_out_of_use():
    def pending(product: str):
        log = changed(H100, 0, remapped_row_pending="Yes").replace("NVIDIA H100 80GB HBM3", product)
        return short(told({"n1": log}, None))

    assert pending("NVIDIA A100-SXM4-80GB") == [("n1", "gpu-rows", "warn")]
    assert pending("NVIDIA L40S") == [("n1", "gpu-rows", "fail")]


def test_memory_that_the_kernel_keeps_on_coherent_boards_keeps_no_node_out():
    log = changed(H100, 1, used="9000 MiB").replace("NVIDIA H100 80GB HBM3", "NVIDIA GH200 480GB")
    assert short(told({"n1": log}, "NVIDIA GH200 SXM")) == [("n1", "gpu-busy", "warn")]


def test_on_shared_nodes_other_jobs_compute_on_their_own_gpus():
    busy = side_by_side(recorded("rtx-pro-6000-busy.xml"), 8)
    asked = request("NVIDIA RTX PRO 6000", only=("gpu-busy",), slurm={"exclusive": False})
    facts = {"n1": {"gpus": smi_facts(busy)}}
    assert findings(facts, type(asked)(**{**asked.__dict__, "gpus_per_node": 2})) == []
    assert len(findings(facts, asked)) == 1, "a job that has all of them knows whose they should be"


def test_the_daemon_of_mps_and_programs_that_draw_are_left_alone():
    log = side_by_side(recorded("rtx-pro-6000-busy.xml"), 1).replace("<used>65720", "<used>30")
    for program in ("<type>G</type>", "<type>M+C</type>\n<process_name>nvidia-cuda-mps-server</process_name>"):
        quiet = log.replace("<type>C</type>", program)
        assert "gpu-busy" not in [check for _, check, _ in short(told({"n1": quiet}, None, 1))]


def test_where_nvlink_reaches_over_nodes_a_gpu_belongs_to_a_cluster():
    """The health that a GPU of an NVL72 rack showed: kubernetes-sigs/dra-driver-nvidia-gpu#626."""
    block = {"node": {"gpus": 8, "gpu": "NVIDIA H100 SXM", "nvlink_domain": "block", "block_nodes": 18}}
    assert short(told({"n1": H100}, **block)) == [("n1", "gpu-fabric", "fail")]
    joined = H100.replace("00000000-0000-0000-0000-000000000000</clusterUuid>", "dc6e40c4-d722-4357-9ba6-5291dd461278</clusterUuid>")
    assert told({"n1": joined}, **block) == []
    ill = joined.replace("<bandwidth>N/A", "<summary>Unhealthy</summary><bandwidth>Full")
    assert [one.said for one in told({"n1": ill}, **block)] == ["NVLink fabric: summary Unhealthy"]


def test_boards_with_a_bridge_and_without_are_compared_with_their_like():
    bridged = recorded("nvlink-bridge.txt")
    assert linked({"n1": bridged, "n2": bridged}, None, 3) == []
    down = bridged.replace("Link 3: 14.062 GB/s", "Link 3: <inactive>", 1)
    assert [(one.node, one.item, one.said) for one in linked({"n1": down, "n2": bridged}, None, 3)] == [
        ("n1", "GPU 0", "3 NVLinks of 4 are up")
    ]


def test_a_gpu_without_any_link_and_what_its_peers_have_left():
    """Four GH200, six links to each other: with one GPU gone its peers leave out the links to it (nvidia-smi prints one line for it)."""
    peer = "".join(f"\t Link {link}: 26.562 GB/s\n" for link in range(12))
    gone = "NVML: Unable to retrieve NVLink information as all links are inActive\n"
    text = "".join(f"GPU {gpu}: NVIDIA GH200 120GB (UUID: GPU-0)\n{gone if gpu == 2 else peer}" for gpu in range(4))
    found = linked({"n1": text}, "NVIDIA GH200 SXM", 4)
    assert [(one.item, one.said) for one in found] == [("GPUs 0-1,3", "12 NVLinks of 18 are up"), ("GPU 2", "0 NVLinks of 18 are up")]


@pytest.mark.parametrize(
    ("generation", "per_direction_gbps", "link_gbps"), [("A100", 300, 25), ("H100", 450, 25), ("B200", 900, 50), ("GB300", 900, 50)]
)
def test_the_number_of_links_is_the_bandwidth_by_that_of_one(generation, per_direction_gbps, link_gbps):
    """Per direction, hardware.csv (stas00/ml-engineering); of one link, NVIDIA's for NVLink 3, 4 and 5."""
    assert LINKS[f"NVIDIA {generation} SXM"] == per_direction_gbps // link_gbps


def test_an_8_link_board_of_the_same_chip_is_no_trouble_where_the_site_names_none():
    export = nvlink("".join(recorded("nvlink-h100.txt").splitlines(keepends=True)[:9]), 8)
    assert linked({"n1": export, "n2": export}, None, 8) == []


@pytest.mark.parametrize("log", ["dmesg-application.txt"])
def test_what_programs_did_wrong_is_no_trouble_of_the_node(log):
    found = events(records(recorded(log)), None)
    assert found
    assert findings({"n1": {"xid": {"readable": True, "said": "", "events": found}}}, request(only=("gpu-xid",))) == []


def test_a_log_that_nobody_may_read_is_told_once():
    unread = {"xid": {"readable": False, "said": "dmesg: read kernel buffer failed: Operation not permitted", "events": []}}
    found = findings(dict.fromkeys(("n1", "n2", "n3"), unread), request(only=("gpu-xid",)))
    assert [(one.node, one.grade) for one in found] == [("n1", "warn")]
    assert "(and on 2 other nodes)" in found[0].said


@pytest.mark.parametrize(
    ("product", "gpu", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 SXM", True),
        ("NVIDIA H100 64GB HBM3", "NVIDIA H100 SXM", True),
        ("NVIDIA H100 PCIe", "NVIDIA H100 SXM", False),
        ("NVIDIA H100 NVL", "NVIDIA H100 NVL", True),
        ("NVIDIA H100 NVL", "NVIDIA H100 PCIe", False),
        ("NVIDIA H200", "NVIDIA H200 SXM", True),
        ("NVIDIA H200 NVL", "NVIDIA H200 SXM", False),
        ("NVIDIA H200", "NVIDIA H100 SXM", False),
        ("NVIDIA GH200 480GB", "NVIDIA GH200 SXM", True),
        ("NVIDIA GH200 480GB", "NVIDIA H200 SXM", False),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 SXM", True),
        ("A100-SXM4-40GB", "NVIDIA A100 SXM", True),
        ("NVIDIA A100-SXM-64GB", "NVIDIA A100 SXM", True),
        ("NVIDIA A100-PCIE-40GB", "NVIDIA A100 PCIe", True),
        ("NVIDIA A100 80GB PCIe", "NVIDIA A100 SXM", False),
        ("NVIDIA B200", "NVIDIA B200 SXM", True),
        ("NVIDIA GB200", "NVIDIA B200 SXM", False),
        ("NVIDIA B300 SXM6 AC", "NVIDIA B300 SXM", True),
        ("NVIDIA GB300", "NVIDIA GB300 SXM", True),
        ("NVIDIA L40S", "NVIDIA L40S", True),
        ("NVIDIA L40", "NVIDIA L40S", False),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "NVIDIA RTX PRO 6000", True),
    ],
)
def test_names_of_nvidia_smi_and_of_the_hardware_table(product, gpu, expected):
    assert fits(product, gpu) is expected


def test_sites_of_other_makers_are_asked_nothing_of_nvidia():
    assert [check.name for check in checks_for(request("AMD MI300X")) if check.name in OURS] == []
    assert len(OURS) >= 20
