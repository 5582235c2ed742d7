"""Texts that cannot become tokens are one line with their place; nothing is lost unseen, nothing is tokenized that nobody wrote."""

from __future__ import annotations

import gzip
import json
import os

import pytest
from tokenizers import Tokenizer, models

from slurmtrain.data.build import build
from slurmtrain.data.encode import HubTokenizer
from slurmtrain.data.tokens import TokenFolder
from slurmtrain.errors import UserError
from tests.data.tiny_tokenizer import tiny_tokenizer

ASSISTANT = {"role": "assistant", "content": "yes"}


@pytest.fixture
def tokenizer(tmp_path):
    return HubTokenizer.load(tiny_tokenizer(tmp_path / "tokenizer"))


@pytest.fixture
def made(tmp_path):
    def make(line: bytes, encoder=None, **how):
        (tmp_path / "in.jsonl").write_bytes(line + b"\n")
        return TokenFolder.open(build([tmp_path / "in.jsonl"], tmp_path / "out", encoder=encoder, **how).folder)

    return make


@pytest.mark.parametrize(
    "line, says",
    [
        (b"[" * 100_000, "in.jsonl:1: not JSON that can be read: too many brackets"),
        (b'{"text": "x", "more": ' + b"[" * 100_000, "in.jsonl:1: not JSON that can be read: too many brackets"),
        (b'{"text": "\xff"}', "in.jsonl:1: not JSON: 'utf-8' codec"),
        (b'{"text": "x", "n": ' + b"9" * 5000 + b"}", "in.jsonl:1: not JSON: "),
        (gzip.compress(b'{"text": "x"}'), "in.jsonl: is gzip, not text: unpack it first"),
        (b"PAR1" + bytes(100), "in.jsonl: is parquet, not text"),
        (json.dumps({f"k{i}": 1 for i in range(1000)}).encode(), "has no 'text', but 'k0', .*'k7' and 992 more"),
        (b'{"text": ""}', "all texts are empty"),
    ],
)
def test_a_line_that_is_no_text(made, tmp_path, line, says):
    with pytest.raises(UserError, match=says) as caught:
        made(line, key="text")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_packed_file_is_no_text_for_a_tokenizer(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_bytes(gzip.compress(b"words"))
    with pytest.raises(UserError, match=r"a\.txt: is gzip, not text"):
        build([tmp_path / "a.txt"], tmp_path / "out", encoder=tokenizer)


def test_half_characters_become_the_replacement_character_and_marks_stay(made, tokenizer):
    line = json.dumps({"prompt": "a\ud800", "response": "\udc00b"}).encode()
    tokens = made(line, tokenizer, answers=True)
    assert tokenizer.decode(tokens.document(0).tolist()) == "a\ufffd\ufffdb"
    whole = tokens.answers(0, len(tokens))
    assert tokenizer.decode(tokens.document(0)[whole].tolist()) == "\ufffdb"


def test_a_folder_that_cannot_be_read_is_not_passed_over(tmp_path, monkeypatch):
    (tmp_path / "in" / "closed").mkdir(parents=True)
    (tmp_path / "in" / "a.txt").write_text("a")
    real = os.scandir

    def scandir(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(UserError, match="in/closed: Permission denied: make it readable"):
        build([tmp_path / "in"], tmp_path / "out")


@pytest.mark.parametrize(
    "user, says",
    [
        ({"content": None}, "the content of turn 1 is not a text"),
        ({}, "the content of turn 1 is not a text"),
        ({"content": 3}, "the content of turn 1 is not a text"),
        ({"content": [{"type": "text", "text": "hi"}]}, "turn 1 is not a text, and the tokenizer has no chat template"),
        ({"content": None, "tool_calls": []}, "turn 1 is not a text, and the tokenizer has no chat template"),
    ],
)
def test_chatml_writes_texts_alone(made, user, says):
    line = json.dumps({"messages": [{"role": "user", **user}, ASSISTANT]}).encode()
    with pytest.raises(UserError, match=f"in.jsonl:1: .*{says}"):
        made(line, answers=True)


def with_template(tmp_path, template):
    return HubTokenizer.load(tiny_tokenizer(tmp_path / "templated", template=template))


def test_a_template_may_know_parts_and_generation_tags(made, tmp_path):
    template = (
        "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% else %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    encoder = with_template(tmp_path, template)
    line = json.dumps({"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}, ASSISTANT]}).encode()
    tokens = made(line, encoder, answers=True)
    assert encoder.decode(tokens.document(0).tolist()) == "<user>hi<assistant>yes"
    assert encoder.decode(tokens.document(0)[tokens.answers(0, len(tokens))].tolist()) == "yes"


@pytest.mark.parametrize(
    "template",
    [
        "{{ 1 / 0 }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ messages[7].x.y }}",
    ],
)
def test_whatever_a_template_does_is_one_line(made, tmp_path, template):
    line = json.dumps({"messages": [{"role": "user", "content": "x"}, ASSISTANT]}).encode()
    with pytest.raises(UserError, match=r"in.jsonl:1: the chat template refuses it: ") as caught:
        made(line, with_template(tmp_path, template), answers=True)
    assert "\n" not in str(caught.value)


def test_a_broken_template_hinders_only_who_needs_it(made, tmp_path):
    encoder = with_template(tmp_path, "{% for %}")
    assert made(b'{"text": "x"}', encoder, key="text").documents == 1
    with pytest.raises(UserError, match=r"tokenizer.json: the chat template cannot be read"):
        made(b'{"prompt": "x", "response": "y"}', encoder, answers=True)


def test_what_lies_beside_a_tokenizer_is_read_also_when_the_file_is_named(tmp_path):
    folder = tiny_tokenizer(tmp_path / "t", template="X{{ messages[0].content }}", eos="<|im_end|>")
    by_folder, by_file = HubTokenizer.load(folder), HubTokenizer.load(folder / "tokenizer.json")
    assert by_file.eod == by_folder.eod == 2  # of SPECIAL, in its order
    assert by_file.render([{"role": "user", "content": "y"}], invite=False) == "Xy"


@pytest.mark.parametrize(
    "model, says",
    [(models.BPE(), "has no tokens: give the tokenizer"), (models.WordLevel({"a": 0, "<eos>": 1}), "the tokenizer refuses a text")],
)
def test_a_tokenizer_that_makes_no_tokens(tmp_path, model, says):
    (tmp_path / "tokenizer.json").write_text(Tokenizer(model).to_str())
    (tmp_path / "a.txt").write_text("b")
    with pytest.raises(UserError, match=f"tokenizer.json: .*{says}"):
        build([tmp_path / "a.txt"], tmp_path / "out", encoder=HubTokenizer.load(tmp_path))
    assert not (tmp_path / "out").exists()
