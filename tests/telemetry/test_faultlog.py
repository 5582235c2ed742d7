"""The site's fault log: many write to it at once, some tear it; what it says of nodes and of their rate."""

from __future__ import annotations

import json
import os
import re
import stat
import threading
from itertools import count

import pytest

from slurmtrain.telemetry.faultlog import LEAST_FAULTS, LoggedEnd, append, by_node, measured_rate, rate_of, read_ends

NOW = 1_700_000_000.0


def end(t=0.0, *, nodes="n[1-4]", hours=24.0, bad="", cause="node_failure", site="alps", **more):
    return LoggedEnd(
        **{
            "t": NOW + t,
            "site": site,
            "user": "ada",
            "job_id": "7",
            "attempt": 1,
            "cause": cause,
            "nodes": nodes,
            "hours": hours,
            "bad": bad,
            **more,
        }
    )


def test_a_line_comes_back_as_it_was(tmp_path):
    path = tmp_path / "faults.jsonl"
    ends = [end(bad="n[2-3]", detail="node n2 is down"), end(1, cause="finished", hours=1.5)]
    for one in ends:
        append(path, one.to_line())
    assert list(read_ends(path)) == ends
    assert list(read_ends(path, since=NOW + 0.5)) == ends[1:]
    assert json.loads(path.read_text().splitlines()[0]) == {
        "v": 1,
        "t": NOW,
        "site": "alps",
        "user": "ada",
        "job_id": "7",
        "attempt": 1,
        "cause": "node_failure",
        "nodes": "n[1-4]",
        "hours": 24.0,
        "bad": "n[2-3]",
        "detail": "node n2 is down",
    }


def test_whoever_comes_first_makes_it_for_everybody(tmp_path):
    path = tmp_path / "faults.jsonl"
    before = os.umask(0o077)
    try:
        append(path, end().to_line())
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666
    path.chmod(0o664)
    append(path, end().to_line())
    assert stat.S_IMODE(path.stat().st_mode) == 0o664, "what the administrator has set stays"


def test_never_through_a_link_nor_into_a_pipe(tmp_path):
    mine, link, pipe = tmp_path / "mine", tmp_path / "link", tmp_path / "pipe"
    mine.write_text("precious\n")
    link.symlink_to(mine)
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        for path in (link, pipe, tmp_path, tmp_path / "no" / "folder"):
            with pytest.raises(OSError, match=r"no regular file|symbolic links|directory"):
                append(path, b"x\n")
    finally:
        os.close(reader)
    assert mine.read_text() == "precious\n"


def test_many_at_once_lose_no_line(tmp_path):
    path, numbers = tmp_path / "faults.jsonl", count()

    def write():
        for _ in range(50):
            append(path, end(attempt=next(numbers)).to_line())

    threads = [threading.Thread(target=write) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(one.attempt for one in read_ends(path)) == list(range(400))


def test_what_is_torn_foreign_or_newer_is_passed_over(tmp_path):
    path, good = tmp_path / "faults.jsonl", end().to_line()
    newer = json.dumps({**json.loads(good), "v": 9, "colour": "blue"}).encode() + b"\n"
    bad = [
        b"\xff\n",
        b"[]\n",
        b"{}\n",
        good[:60] + b"\n",
        good.replace(b"24.0", b'"long"'),
        good.replace(b"24.0", b"-1"),
        good.replace(b"24.0", b"1e300"),
        re.sub(rb'"t": ?[0-9.]+', b'"t": 1e300', good),
        re.sub(rb'"t": ?[0-9.]+', b'"t": NaN', good),
        b"[" * 99999 + b"\n",
        good.replace(b'"n[1-4]"', b"4"),
    ]
    path.write_bytes(b"".join(bad) + good + newer + good[:-20])
    assert list(read_ends(path)) == [end(), end()]


def test_nodes_by_faults_and_their_node_days():
    """Four nodes for a day; n2 fails twice, the second time with n3; n9 is known only by its fault."""
    ends = [end(10, bad="n2"), end(20, nodes="n[1-2]", hours=12, bad="n2,n9", cause="hang"), end(30, cause="finished", nodes="n3", hours=6)]
    told = by_node(ends)
    assert [(one.node, one.faults, one.node_days, one.last) for one in told] == [
        ("n2", 2, 1.5, NOW + 20),
        ("n9", 1, 0.0, NOW + 20),
        ("n1", 0, 1.5, float("-inf")),
        ("n3", 0, 1.25, float("-inf")),
        ("n4", 0, 1.0, float("-inf")),
    ]
    assert dict(told[0].causes) == {"node_failure": 1, "hang": 1}
    assert by_node([end(nodes="n[1-999999999]", bad="@all")]) == []


def test_the_rate_of_llama_3s_run():
    """419 unexpected interruptions in 54 days on 16,384 GPUs, 2,048 nodes: 3.79 in 1,000 node-days (arXiv 2407.21783, table 5)."""
    ends = [end(nodes="n[1-2048]", hours=54 * 24)] + [end(nodes="", hours=0, bad=f"n{1 + i % 2048}") for i in range(419)]
    rate = rate_of(by_node(ends))
    assert (rate.faults, rate.node_days) == (419, pytest.approx(54 * 2048))
    assert 1000 * rate.per_node_day == pytest.approx(3.79, abs=0.005)
    assert 1000 * rate.low == pytest.approx(379.8 / 110.592, abs=0.005)
    assert 1000 * rate.high == pytest.approx(461.1 / 110.592, abs=0.005)


def test_a_rate_counts_only_with_enough_faults_of_this_site(tmp_path):
    path = tmp_path / "faults.jsonl"
    assert measured_rate(path, "alps", 0) is None
    for i in range(LEAST_FAULTS):
        assert measured_rate(path, "alps", 0) is None
        append(path, end(i, bad="n1").to_line())
        append(path, end(i, bad="n1", site="elsewhere", hours=1000).to_line())
    rate = measured_rate(path, "alps", 0)
    assert (rate.faults, rate.node_days, rate.per_node_day) == (5, 20.0, 0.25)
    assert measured_rate(path, "alps", NOW + 1) is None
