"""`slurmtrain data`: from text to tokens, a look at them, other formats, and the same as a batch job."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slurmtrain.cli.batch import script_of
from tests.cli.desk import Desk, one_line_of
from tests.data.tiny_tokenizer import tiny_tokenizer
from tests.data.token_files import write_folder, write_pair
from tests.fakes.slurm import FakeSlurm


@pytest.fixture
def desk(tmp_path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def chats(tmp_path) -> Path:
    lines = [
        {"prompt": "two and two? ", "response": "four"},
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    ]
    path = tmp_path / "chats.jsonl"
    path.write_text("\n\n".join(json.dumps(line) for line in lines) + "\n")
    return path


def ok(result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


def facts(text: str) -> dict[str, str]:
    return {line.split()[0]: line.split(maxsplit=1)[1] for line in text.split("\n\n", maxsplit=1)[0].splitlines()}


def test_json_lines_under_a_key(desk, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"text": "one"}\n{"text": ""}\n\n{"text": "zw\\u00f6lf", "id": 3}\n')
    (tmp_path / "in" / "notes.txt").write_text("not JSON")
    told = ok(desk.type("data", "build", tmp_path / "in", "--key", "text", "--out", tmp_path / "made"))
    assert told.split() == ["tokens", "11", "documents", "2", "folder", str(tmp_path / "made")]
    shown = ok(desk.type("data", "inspect", tmp_path / "made", "--document", 1))
    assert shown.endswith("\ndocument 1\nzwölf\n")
    assert facts(shown)["documents"] == "2 of 4 to 7 tokens, median 5"


@pytest.mark.parametrize(
    "line, says",
    [
        ("{", "a.jsonl:2: not JSON"),
        ("[]", "a.jsonl:2: not an object such as"),
        ('{"body": "x"}', "a.jsonl:2: has no 'text', but 'body'"),
        ('{"text": 3}', "a.jsonl:2: 'text' is not a text"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(desk, tmp_path, line, says):
    (tmp_path / "a.jsonl").write_text(f'{{"text": "x"}}\n{line}\n')
    assert says in one_line_of(desk.type("data", "build", tmp_path / "a.jsonl", "--key", "text", "--out", tmp_path / "made"))
    assert not (tmp_path / "made").exists()


def test_answers_are_shown_between_marks(desk, tmp_path, chats):
    ok(desk.type("data", "build", chats, "--answers", "--out", tmp_path / "made"))
    shown = ok(desk.type("data", "inspect", tmp_path / "made"))
    assert shown.endswith("document 0\ntwo and two? [answer]four[/answer]\n")
    assert json.loads((tmp_path / "made" / "index.json").read_text())["v"] == 2
    shown = ok(desk.type("data", "inspect", tmp_path / "made", "--document", "1"))
    assert shown.endswith("<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[answer]b<|im_end|>\n[/answer]\n")
    # "four" and the end; "b<|im_end|>\\n" and the end; of 17 + 1 and 51 + 1 bytes and ends
    assert facts(shown)["answers"] == f"{100 * (5 + 13) / (18 + len(CHATML_OF_ONE) + 1):.1f} % of the tokens"


CHATML_OF_ONE = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"


@pytest.mark.parametrize("kind, name", [("folder", "made"), ("megatron", "made"), ("hdf5", "made.h5")])
def test_a_tokenizer_is_kept_with_a_folder_and_given_for_other_formats(desk, tmp_path, kind, name):
    folder = tiny_tokenizer(tmp_path / "tokenizer")
    (tmp_path / "a.txt").write_text("the node trains the model, grüße")
    ok(desk.type("data", "build", tmp_path / "a.txt", "--tokenizer", folder, "--format", kind, "--out", tmp_path / name))
    shown = ok(desk.type("data", "inspect", tmp_path / name))
    assert shown.endswith("the node trains the model, grüße\n") == (kind == "folder")
    shown = ok(desk.type("data", "inspect", tmp_path / name, "--tokenizer", folder))
    assert shown.splitlines()[-1].startswith("the node trains the model, grüße")
    assert facts(shown)["format"] == kind


def test_sums_are_compared_when_asked(desk, tmp_path):
    folder = write_folder(tmp_path / "made", [[1, 2, 256]])
    assert facts(ok(desk.type("data", "inspect", folder, "--verify")))["sums"] == "as written"
    data = bytearray((folder / "tokens.bin").read_bytes())
    data[0] ^= 1
    (folder / "tokens.bin").write_bytes(data)
    result = desk.type("data", "inspect", folder, "--verify")
    assert result.exit_code == 1
    assert "tokens.bin: damaged: its sum differs" in facts(result.stdout)["sums"]


def test_numbers_are_shown_where_nothing_decodes_them(desk, tmp_path):
    shown = ok(desk.type("data", "inspect", write_pair(tmp_path / "p", [[5, 6, 7, 8]]), "--tokens", "3"))
    assert shown.endswith("document 0\n5 6 7\n")
    assert facts(shown)["vocabulary"] == "not told"


def test_converting(desk, tmp_path):
    pair = write_pair(tmp_path / "p", [[5, 6], [7, 8]])
    told = ok(desk.type("data", "convert", pair, "--to", "folder", "--out", tmp_path / "made", "--vocab", 9, "--eod", 8))
    assert told.split() == ["tokens", "4", "documents", "2", "tokens", "in", str(tmp_path / "made")]
    assert facts(ok(desk.type("data", "inspect", tmp_path / "made", "--verify")))["vocabulary"] == "9"


@pytest.mark.parametrize(
    "words, says",
    [
        (("build", "x", "--out", "y", "--key", "a", "--answers"), "give one of them"),
        (("build", "x", "--out", "y", "--eod", "</s>"), "give --tokenizer"),
        (("build", "x", "--out", "y"), "x: no such file or folder"),
        (("build", "text.py", "--out", "y", "--cpus", "3"), "--cpus is of the batch job: give --batch too"),
        (("build", "text.py", "--out", "y", "--batch", "--time", "soon"), "--time 'soon' is not a time"),
        (("inspect", "none"), "no such folder, .bin/.idx pair or HDF5 file of tokens"),
        (("inspect", "tokens", "--document", "7"), "has no document 7: there are 0 to 0"),
        (("convert", "none", "--to", "hdf5", "--out", "y"), "no such folder, .bin/.idx pair or HDF5 file of tokens"),
    ],
)
def test_mistakes_are_one_line(desk, tmp_path, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    result = desk.type("data", *words)
    assert says in one_line_of(result, code=2)


def test_a_terminal_shows_a_bar_and_a_file_none(tmp_path):
    """On a pseudo-terminal the bar is drawn; what is printed at the end is the same."""
    (tmp_path / "a.txt").write_text("words " * 1000)
    shown, end = pty.openpty()
    words = [sys.executable, "-m", "slurmtrain.cli.main", "data", "build", "a.txt", "--out", "made", "--force"]
    done = subprocess.run(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=end, check=True, env={**os.environ, "TERM": "xterm"})
    os.close(end)
    assert b"reading" in os.read(shown, 1 << 16)
    os.close(shown)
    plain = subprocess.run(words, cwd=tmp_path, capture_output=True, check=True)
    assert plain.stderr == b""
    assert done.stdout.split()[:4] == plain.stdout.split()[:4] == [b"tokens", b"6001", b"documents", b"1"]


class Keeping(FakeSlurm):
    """Keeps the text of each script: the file is gone afterwards."""

    def submit(self, script, *, options=()):
        self.text = script.read_text()
        self.script = script
        return super().submit(script, options=options)


@pytest.fixture
def batch(desk, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    desk.slurm = Keeping(desk.clock)
    return desk


def test_a_batch_job_does_what_the_command_says(batch, tmp_path, chats):
    words = ["data", "build", "chats.jsonl", "--answers", "--out", "made", "--force"]
    result = batch.type(*words, "--batch", "-t", "2h", "--cpus", "2", "-p", "cpu", "-A", "lab", "-q", "low")
    assert ok(result) == "Submitted batch job 1\n"
    assert result.stderr == f"output {tmp_path}/slurm-data-made-1.out\n"
    ((script, options),) = batch.slurm.submitted
    assert not script.exists()
    assert set(options) == {
        "--job-name=slurmtrain-data", "--nodes=1", "--ntasks=1", "--cpus-per-task=2", "--time=02:00:00", "--partition=cpu", "--account=lab",
        "--qos=low", f"--output={tmp_path}/slurm-data-made-%j.out", f"--chdir={tmp_path}",
    }  # fmt: skip
    assert not (tmp_path / "made").exists(), "the command line itself builds nothing"
    done = subprocess.run(
        ["bash", "-s"], input=batch.slurm.text, text=True, capture_output=True, cwd=tmp_path, check=True, env=dict(os.environ)
    )
    assert done.stdout.split()[:4] == ["tokens", str(18 + len(CHATML_OF_ONE) + 1), "documents", "2"]
    again = batch.type("data", "build", chats, "--answers", "--out", tmp_path / "made")
    assert "(unchanged)" in ok(again), "the job has built what the command builds"


def test_a_batch_job_of_convert(batch, tmp_path):
    pair = write_pair(tmp_path / "p", [[5, 6], [7, 8]])
    ok(batch.type("data", "convert", pair, "--to", "folder", "--out", "made", "--vocab", 9, "--eod", 8, "--batch"))
    subprocess.run(["bash", "-s"], input=batch.slurm.text, text=True, capture_output=True, cwd=tmp_path, check=True, env=dict(os.environ))
    assert facts(ok(batch.type("data", "inspect", "made")))["vocabulary"] == "9"


@pytest.mark.parametrize(
    "words, says",
    [
        (("build", "gone", "--out", "made"), "gone: no such file or folder"),
        (("build", "chats.jsonl", "--out", "chats.jsonl"), "chats.jsonl: is there and is not a folder"),
        (("build", "chats.jsonl", "--out", "made", "--tokenizer", "gone"), "gone: No such file or directory: give a tokenizer.json"),
        (("build", "chats.jsonl", "--out", "chats.jsonl/made"), "choose an --out where you can write"),
        (("convert", "gone", "--to", "hdf5", "--out", "x.h5"), "gone: no such folder, .bin/.idx pair"),
        (("convert", "tokens", "--to", "hdf5", "--out", "x"), "the name of an HDF5 file ends with"),
    ],
)
def test_what_cannot_work_is_told_before_a_job_is_sent(batch, chats, words, says):
    assert says in one_line_of(batch.type("data", *words, "--batch"))
    assert batch.slurm.submitted == []


def test_the_folder_of_a_jobs_output_is_there_before_the_job(batch, tmp_path, chats):
    ok(batch.type("data", "build", chats, "--answers", "--out", "new/deep/made", "--batch"))
    ((_, options),) = batch.slurm.submitted
    assert f"--output={tmp_path}/new/deep/slurm-data-made-%j.out" in options
    assert (tmp_path / "new" / "deep").is_dir()


def test_a_site_without_slurm_has_no_batch_jobs(batch, chats):
    assert "site local has no Slurm" in one_line_of(batch.type("data", "build", chats, "--out", "made", "--batch", "--site", "local"))


def test_home_is_filled_in_where_the_shell_does_not(desk, tmp_path, monkeypatch, chats):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    ok(desk.type("data", "build", chats, "--answers", "--out=~/made"))
    assert (tmp_path / "home" / "made" / "index.json").exists()
    assert not (tmp_path / "~").exists()


def test_json_lines_without_a_key_are_noted(desk, tmp_path, chats):
    result = desk.type("data", "build", chats, "--out", tmp_path / "made")
    assert result.exit_code == 0
    assert result.stderr == f"note: {chats} was read as plain text, JSON and all: --key or --answers reads its lines\n"
    assert desk.type("data", "build", chats, "--answers", "--out", tmp_path / "other").stderr == ""


@pytest.mark.parametrize("name", ["text.py", "runs"])
def test_what_is_no_tokens_is_a_users_mistake(desk, tmp_path, name):
    for words in (("inspect",), ("convert", "--to", "hdf5", "--out", tmp_path / "x.h5")):
        assert name in one_line_of(desk.type("data", words[0], tmp_path / name, *words[1:]))


def test_a_job_that_is_ended_cleans_up(tmp_path):
    """SIGTERM in the middle: the pipe has been opened, so the build has begun."""
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    code = (
        "import sys; import slurmtrain.data.texts as t; t.check_paths = lambda _: None; from slurmtrain.cli.main import main; "
        f"sys.argv[1:] = ['data', 'build', {str(pipe)!r}, '--key', 'text', '--out', {str(tmp_path / 'made')!r}]; main()"
    )
    child = subprocess.Popen([sys.executable, "-c", code])
    with open(pipe, "wb") as text:
        text.write(b'{"text": "x"}\n')
        text.flush()
        child.terminate()
        assert child.wait(60) == 128 + signal.SIGTERM
    assert [path.name for path in tmp_path.iterdir()] == ["pipe.jsonl"]


def test_the_script_quotes_words_and_loads_the_sites_modules():
    text = script_of(["data", "build", "a b", "--out=it's"], modules=["python/3.12"], exports={"A": "x y"})
    lines = text.splitlines()
    assert lines[0].startswith("#!/bin/bash")
    assert lines[1:3] == ["module load python/3.12 || exit 78", "export A='x y'"]
    assert shlex.split(lines[3])[-4:] == ["data", "build", "a b", "--out=it's"]
