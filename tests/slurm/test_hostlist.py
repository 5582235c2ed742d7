"""Host lists: expected values are what `scontrol show hostnames` of Slurm 22.05 and 24.11 printed (case C24)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmtrain.errors import SlurmError
from slurmtrain.slurm.hostlist import expand, fold

AS_SCONTROL = {
    "a,b[001,003],c-[1-2]": "a b001 b003 c-1 c-2",
    "alpha,beta": "alpha beta",
    "jz-ia810": "jz-ia810",
    "n[1,2]": "n1 n2",
    "r[1-2]n[3-4]": "r1n3 r1n4 r2n3 r2n4",
    "n3,n1,n2": "n3 n1 n2",
    "n[3,1-2]": "n3 n1 n2",
    "n[09-11]": "n09 n10 n11",
    "n[9-11]": "n9 n10 n11",
    "n[098-101]": "n098 n099 n100 n101",
    "n[1-2],n[01-02]": "n1 n2 n01 n02",
    "rack[0-1]-node[01-03]": "rack0-node01 rack0-node02 rack0-node03 rack1-node01 rack1-node02 rack1-node03",
    "x[1-2],y,x3": "x1 x2 y x3",
    "n1.cluster.local,n2.cluster.local": "n1.cluster.local n2.cluster.local",
    "ip-10-0-1-[23,25-26]": "ip-10-0-1-23 ip-10-0-1-25 ip-10-0-1-26",
    "nid[000001-000003,001000]": "nid000001 nid000002 nid000003 nid001000",
}


@pytest.mark.parametrize("text", AS_SCONTROL)
def test_names_and_their_order_are_scontrols(text):
    assert expand(text) == tuple(AS_SCONTROL[text].split())


@pytest.mark.slurm
def test_the_real_scontrol_says_the_same(cluster):
    for text, names in AS_SCONTROL.items():
        assert cluster.run(["scontrol", "show", "hostnames", text]).stdout.split() == names.split(), text
    for text in AS_SCONTROL:
        folded = fold(expand(text))
        assert sorted(cluster.run(["scontrol", "show", "hostnames", folded]).stdout.split()) == sorted(expand(text)), folded


def test_a_name_that_comes_twice_counts_once():
    assert expand("n1,n[1-2],n2") == ("n1", "n2")


def test_nothing_is_no_name():
    assert expand("") == expand("  ") == ()
    assert fold([]) == ""


@pytest.mark.parametrize(
    "text", ["n[10-8]", "n[1-2", "n]", "n[]", "n 1", "(null)", "@all", "n[1-9/2]", "n[1-3]!n2", "a&b", "n^1", "*", "n%s", "n;rm"]
)
def test_what_is_no_host_list_is_refused_and_named(text):
    with pytest.raises(SlurmError, match="is not a host list") as caught:
        expand(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["n3", "n1", "n2"], "n[1-3]"),
        (["n1"], "n1"),
        (["n10", "n9"], "n[9-10]"),
        (["n09", "n10"], "n[09-10]"),
        (["beta", "alpha"], "alpha,beta"),
        (["n1", "n1"], "n1"),
        (["n1-ib0", "n2-ib0"], "n1-ib0,n2-ib0"),  # Slurm: "Invalid hostlist: n[1-2]-ib0"
        (["r2n3", "r1n3", "r1n4"], "r1n[3-4],r2n3"),
    ],
)
def test_folding_writes_what_slurm_reads(names, text):
    assert fold(names) == text


@pytest.mark.parametrize("name", ["", "a,b", "n[1-2]", "a b", "@all", "a/b"])
def test_only_host_names_are_folded(name):
    with pytest.raises(SlurmError, match="is not a host name"):
        fold(["n1", name])


NAME = st.from_regex(r"[a-z]{1,3}(-[a-z]{1,2})?[0-9]{0,4}(n[0-9]{1,3})?(-ib0)?", fullmatch=True)


@given(st.lists(NAME, max_size=12))
def test_folding_loses_no_name_and_adds_none(names):
    assert set(expand(fold(names))) == set(names)
