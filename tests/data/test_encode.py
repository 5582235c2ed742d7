"""Tokens and marks against transformers, and against tables made by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from slurmtrain.data.chat import CHATML, answers_of, renderer
from slurmtrain.data.encode import Bytes, HubTokenizer
from slurmtrain.data.texts import Text
from slurmtrain.errors import UserError
from tests.data.tiny_tokenizer import tiny_tokenizer

LLAMA_LIKE = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message['role'] }}<|im_end|>\n\n{{ message['content'] | trim }}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant<|im_end|>\n\n{% endif %}"
)
CHAT = [
    {"role": "system", "content": "be short"},
    {"role": "user", "content": "grüße?"},
    {"role": "assistant", "content": "你好 and the rank"},
    {"role": "user", "content": "the node?"},
    {"role": "assistant", "content": "saves"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def peer(folder):
    """The same tokenizer as transformers loads it."""
    from transformers import PreTrainedTokenizerFast

    def loaded(**options):
        return PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), eos_token="<|end_of_text|>", **options)

    return loaded


@pytest.mark.parametrize("text", ["the node trains", "grüße, 你好\n\n", "x" * 300, "<|im_end|>"])
def test_tokens_are_those_of_transformers_and_an_end(folder, peer, text):
    mine = HubTokenizer.load(folder)
    expected = peer()(text, add_special_tokens=False, truncation=False)["input_ids"]
    (encoded,) = mine.encode([Text(text)])
    assert encoded.tokens.tolist() == [*expected, 0]
    assert encoded.tokens.dtype == np.int64
    assert encoded.marks is None
    assert mine.decode(encoded.tokens.tolist()) == text


def test_vocabulary_and_end(folder, peer):
    mine = HubTokenizer.load(folder)
    assert mine.vocab == len(peer())
    assert mine.eod == peer().eos_token_id == 0
    assert HubTokenizer.load(folder / "tokenizer.json").eod == 0, "without a configuration the usual names are tried"
    assert HubTokenizer.load(folder, eod="<|im_end|>").eod == 2
    with pytest.raises(UserError, match=r"has no token '</x>': name one that ends a document, --eod TOKEN"):
        HubTokenizer.load(folder, eod="</x>")


def test_files_that_are_no_tokenizers(tmp_path):
    with pytest.raises(UserError, match=r"tokenizer\.json: No such file"):
        HubTokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"not a tokenizer\.json"):
        HubTokenizer.load(tmp_path)


@pytest.mark.parametrize("template", [CHATML, LLAMA_LIKE])
def test_a_conversation_is_written_as_transformers_writes_it(peer, template):
    render = renderer(template, bos_token="<|im_start|>", eos_token="<|end_of_text|>")
    text = answers_of(render)({"messages": CHAT})
    expected = peer(bos_token="<|im_start|>").apply_chat_template(CHAT, chat_template=template, tokenize=False)
    assert text.text == expected


@pytest.mark.parametrize("template, stop", [(CHATML, "<|im_end|>\n"), (LLAMA_LIKE, "<|end_of_text|>")])
def test_answers_are_the_turns_of_the_assistant_with_their_end(template, stop):
    text = answers_of(renderer(template, bos_token="<|im_start|>", eos_token="<|end_of_text|>"))({"messages": CHAT})
    assert [text.text[begin:end] for begin, end in text.answers] == [f"你好 and the rank{stop}", f"saves{stop}"]


def test_marks_are_those_of_transformers_where_the_template_tells_them(peer, folder):
    """A template with {% generation %} makes transformers tell which tokens the assistant gave; marks come out the same without it."""
    told = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.role == 'assistant' %}{% generation %}"
        "{{ message.content }}<|im_end|>\n{% endgeneration %}{% else %}{{ message.content }}<|im_end|>\n{% endif %}{% endfor %}"
    )
    expected = peer().apply_chat_template(
        CHAT, chat_template=told, tokenize=True, return_dict=True, return_assistant_tokens_mask=True, truncation=False
    )
    mine = HubTokenizer.load(folder)
    (encoded,) = mine.encode([answers_of(mine.render)({"messages": CHAT})])
    assert encoded.tokens.tolist()[:-1] == expected["input_ids"]
    assert encoded.marks.tolist()[:-1] == [bool(mark) for mark in expected["assistant_masks"]]
    assert encoded.marks[-1], "that the document ends there is a part of the answer"


def test_marks_of_bytes_by_hand():
    one = Bytes().encode([answers_of(renderer())({"prompt": "né?", "response": "ü!"})])[0]
    assert one.tokens.tolist() == [*"né?ü!".encode(), 256]
    assert one.marks.astype(int).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_an_end_that_follows_no_answer_is_none(folder):
    chat = [*CHAT, {"role": "user", "content": "ok"}]
    for encoder in (Bytes(), HubTokenizer.load(folder)):
        (encoded,) = encoder.encode([answers_of(encoder.render)({"messages": chat})])
        assert not encoded.marks[-1]
        assert encoded.marks.any()


def test_a_token_that_reaches_into_an_answer_is_not_marked(folder):
    """ "the" is one token of this vocabulary: an answer that begins inside it begins with the token behind."""
    mine = HubTokenizer.load(folder)
    whole = mine.encode([Text("the node")])[0].tokens.tolist()
    (encoded,) = mine.encode([Text("the node", ((1, 8),))])
    assert encoded.tokens.tolist() == whole
    assert encoded.marks.tolist() == [False, *[True] * (len(whole) - 1)]


def test_a_template_that_rewrites_earlier_turns_is_refused():
    last_only = "{% for m in messages %}{% if loop.last or m.role == 'user' %}{{ m.content }};{% endif %}{% endfor %}"
    with pytest.raises(ValueError, match="writes turn 3 otherwise when more turns follow"):
        answers_of(renderer(last_only))({"messages": CHAT})


@pytest.mark.parametrize(
    "raw, words",
    [
        ({"prompt": "a"}, "has no 'response' or 'completion', but 'prompt'"),
        ({"response": "a"}, "has neither 'prompt' nor 'messages', but 'response'"),
        ({"prompt": 1, "response": "a"}, "'prompt' is not a text"),
        ({"messages": "hi"}, "'messages' is not a list"),
        ({"messages": [{"content": "x"}]}, "'messages' is not a list"),
        ({"messages": [{"role": "user", "content": "x"}]}, "no turn of the assistant"),
    ],
)
def test_what_has_no_answer_is_refused(raw, words):
    with pytest.raises(ValueError, match=words):
        answers_of(renderer())(raw)


def test_a_template_may_refuse_and_may_be_broken():
    with pytest.raises(ValueError, match="the chat template refuses it: roles must alternate"):
        answers_of(renderer("{{ raise_exception('roles must alternate') }}"))({"messages": CHAT})
    with pytest.raises(ValueError, match="the chat template cannot be read"):
        renderer("{% if %}")


def test_templates_of_a_folder(tmp_path):
    plain = tiny_tokenizer(tmp_path / "a", template="A{{ messages[0].content }}")
    assert HubTokenizer.load(plain).render(CHAT, invite=False) == "Abe short"
    (plain / "chat_template.jinja").write_text("B{{ eos_token }}")
    assert HubTokenizer.load(plain).render(CHAT, invite=False) == "B<|end_of_text|>"
    several = tiny_tokenizer(tmp_path / "b")
    config = {
        "eos_token": {"content": "<|im_end|>"},
        "chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}],
    }
    (several / "tokenizer_config.json").write_text(json.dumps(config))
    assert HubTokenizer.load(several).render(CHAT, invite=False) == "D"
    assert HubTokenizer.load(several).eod == 2
