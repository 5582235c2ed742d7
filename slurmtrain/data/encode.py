"""Texts to tokens: bytes, or a tokenizer of Hugging Face's `tokenizers`; an end of document behind each."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from slurmtrain.data.chat import Render, renderer
from slurmtrain.data.texts import Spans, Text
from slurmtrain.errors import UserError, one_line

BYTE_EOD = 256
BYTE_VOCAB = 257
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")
"""Tokens that end a document in known vocabularies, where neither --eod nor the tokenizer's configuration says one."""
_SURROGATES = re.compile("[\ud800-\udfff]")
"""Halves of characters, which JSON can write and UTF-8 cannot: with a tokenizer they become U+FFFD, one for one."""


@dataclass(frozen=True)
class Encoded:
    """One document, its end included. tokens: int64; marks (bool): tokens that belong to answers, None where nothing is marked."""

    tokens: np.ndarray
    marks: np.ndarray | None


class Encoder(Protocol):
    """`tokenizer`: what is kept beside the tokens so that they can be read back; `render`: writes conversations."""

    @property
    def vocab(self) -> int: ...

    @property
    def eod(self) -> int: ...

    @property
    def tokenizer(self) -> bytes | None: ...

    @property
    def render(self) -> Render: ...

    def encode(self, texts: Sequence[Text]) -> list[Encoded]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...


class Bytes:
    """Each byte of UTF-8 is a token, 256 ends a document."""

    vocab, eod, tokenizer = BYTE_VOCAB, BYTE_EOD, None

    def __init__(self) -> None:
        self.render = renderer()

    def encode(self, texts: Sequence[Text]) -> list[Encoded]:
        return [self._one(text) for text in texts]

    def _one(self, text: Text) -> Encoded:
        data = text.text.encode(errors="surrogatepass")
        tokens = np.append(np.frombuffer(data, np.uint8).astype(np.int64), BYTE_EOD)
        if text.answers is None:
            return Encoded(tokens, None)
        marks = np.zeros(len(tokens), np.bool_)
        for begin, end in text.answers:
            first, last = (len(text.text[:at].encode(errors="surrogatepass")) for at in (begin, end))
            marks[first:last] = True
        marks[-1] = _ends_with_answer(text)
        return Encoded(tokens, marks)

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(token for token in tokens if token < BYTE_EOD).decode(errors="replace")


class HubTokenizer:
    """A tokenizer.json. No special tokens are added but the end of each document (`eod`: its text or its number)."""

    def __init__(
        self, content: bytes, *, eod: str | int | None = None, config: dict[str, Any] | None = None, where: str = "tokenizer"
    ) -> None:
        import tokenizers  # noqa: PLC0415 only where text is tokenized or shown

        config = config or {}
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(content.decode())
        except Exception as error:  # tokenizers raises bare Exceptions
            raise UserError(f"{where}: not a tokenizer.json: {one_line(str(error), 120)}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.tokenizer: bytes | None = content
        self._where, self._config = where, config
        self.vocab = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        if not self.vocab:
            raise UserError(f"{where}: has no tokens: give the tokenizer of a model")
        self.eod = eod if isinstance(eod, int) else _end(self._tokenizer, eod or _token(config, "eos_token"), where)

    @property
    def render(self) -> Render:
        """Raises UserError for a chat template that is none."""
        named = {name: token for name in ("bos_token", "eos_token") if (token := _token(self._config, name))}
        try:
            return renderer(_template(self._config), **named)
        except ValueError as error:
            raise UserError(f"{self._where}: {error}") from error

    @classmethod
    def load(cls, path: Path, *, eod: str | int | None = None) -> HubTokenizer:
        """From a tokenizer.json or its folder, as Hugging Face writes it; end and chat template are beside it. Raises UserError."""
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            content, config = file.read_bytes(), _config(file.parent)
        except OSError as error:
            advice = "give a tokenizer.json, or a folder with one (none is fetched)"
            raise UserError(f"{error.filename or file}: {error.strerror or error}: {advice}") from error
        return cls(content, eod=eod, config=config, where=str(file))

    def encode(self, texts: Sequence[Text]) -> list[Encoded]:
        """Many at once: the library shares them between threads. Raises UserError for a text of which it makes no tokens."""
        marked = any(text.answers is not None for text in texts)
        run = self._tokenizer.encode_batch if marked else self._tokenizer.encode_batch_fast
        try:
            made = run([_SURROGATES.sub("\N{REPLACEMENT CHARACTER}", text.text) for text in texts], add_special_tokens=False)
        except Exception as error:  # tokenizers raises bare Exceptions
            raise UserError(f"{self._where}: the tokenizer refuses a text: {one_line(str(error), 120)}") from error
        return [
            Encoded(np.array([*one.ids, self.eod], np.int64), None if text.answers is None else _marks(one.offsets, text, text.answers))
            for one, text in zip(made, texts, strict=True)
        ]

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode([token for token in tokens if token != self.eod], skip_special_tokens=False))


def _marks(offsets: Sequence[tuple[int, int]], text: Text, answers: Spans) -> np.ndarray:
    """A token belongs to an answer when it begins in one; a token that reaches into an answer from outside does not."""
    begins, ends = np.array([*offsets, (0, 0)], np.int64).T
    marks = np.zeros(len(begins), np.bool_)
    for begin, end in answers:
        marks |= (begins >= begin) & (begins < end) & (ends > begins)
    marks[-1] = _ends_with_answer(text)
    return marks


def _ends_with_answer(text: Text) -> bool:
    """Then the end of the document is a part of it: the model learns to stop."""
    return bool(text.answers) and text.answers is not None and text.answers[-1][1] == len(text.text)


def _end(tokenizer: Any, said: str | None, where: str) -> int:
    for token in (said,) if said else ENDS:
        if (number := tokenizer.token_to_id(token)) is not None:
            return int(number)
    if said:
        raise UserError(f"{where}: has no token {said!r}: name one that ends a document, --eod TOKEN")
    raise UserError(f"{where}: none of {' '.join(ENDS)} is in it: name the token that ends a document, --eod TOKEN")


def _config(folder: Path) -> dict[str, Any]:
    """What lies beside a tokenizer.json: its configuration, and the chat template where that is a file of its own."""
    path, template = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    try:
        raw = json.loads(path.read_bytes()) if path.exists() else {}
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON: {error}") from error
    config = raw if isinstance(raw, dict) else {}
    return {**config, "chat_template": template.read_text(errors="replace")} if template.exists() else config


def _token(config: dict[str, Any], name: str) -> str | None:
    found = config.get(name)
    found = found.get("content") if isinstance(found, dict) else found
    return found if isinstance(found, str) else None


def _template(config: dict[str, Any]) -> str | None:
    """The chat template; of several the one named "default"; None where there is none."""
    found = config.get("chat_template")
    if isinstance(found, list):
        found = next((one.get("template") for one in found if isinstance(one, dict) and one.get("name") == "default"), None)
    return found if isinstance(found, str) else None
