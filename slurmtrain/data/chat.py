"""Prompts with responses, and conversations, as texts whose answers are marked.

    {"prompt": "..", "response": ".."}    the one and then the other, as they are ("completion" does too); the response is the answer
    {"messages": [{"role": "user", "content": ".."}, {"role": "assistant", "content": ".."}, ..]}
                                          as the tokenizer's chat template writes it, else as ChatML; answers are what the template
                                          adds for each turn of the assistant behind the words that invite it

The template is run as Hugging Face runs it (Jinja2, sandboxed), once for each beginning of the conversation: what a turn adds is the
difference of two of them, so that marks need no help from the template. One that rewrites earlier turns is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

from jinja2 import TemplateError
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from slurmtrain.data.texts import Text, keys_of, string
from slurmtrain.errors import one_line

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Render(Protocol):
    """Writes the beginning of a conversation; `invite`: and the words that invite the assistant's turn."""

    def __call__(self, messages: Sequence[Any], *, invite: bool) -> str: ...


class Generation(Extension):
    """{% generation %} .. {% endgeneration %}, by which some templates mark answers: their inside as it is."""

    tags = {"generation"}  # noqa: RUF012 as its base class declares it

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def renderer(template: str | None = None, **tokens: str) -> Render:
    """From a chat template (default: ChatML); `tokens`: bos_token, eos_token. Raises ValueError for a template that is none."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation])
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals["raise_exception"] = _refuse
    try:
        made = environment.from_string(template or CHATML)
    except TemplateError as error:
        raise ValueError(f"the chat template cannot be read: {one_line(str(error), 120)}") from error

    def render(messages: Sequence[Any], *, invite: bool) -> str:
        if template is None:
            _check_words(messages)
        try:
            return made.render(messages=list(messages), add_generation_prompt=invite, **tokens)
        except Exception as error:  # whatever a foreign template does
            raise ValueError(f"the chat template refuses it: {one_line(str(error), 120)}") from error

    return render


def _check_words(messages: Sequence[Any]) -> None:
    """ChatML knows texts alone: a list of parts, or a call of a tool, would come out in Python's own notation."""
    for number, message in enumerate(messages, 1):
        if not isinstance(message.get("content"), str):
            fault = f"the content of turn {number} is not a text, and the tokenizer has no chat template for other things"
            raise ValueError(fault)  # noqa: TRY004 of the user's data


def _refuse(words: str) -> NoReturn:
    raise TemplateError(words)


def answers_of(render: Render) -> Callable[[Any], Text]:
    """Reads a JSON line with a prompt and its response, or with messages."""

    def read(raw: Any) -> Text:
        if "messages" in raw:
            return _conversation(raw["messages"], render)
        if "prompt" not in raw:
            raise ValueError(f"has neither 'prompt' nor 'messages', but {keys_of(raw)}")
        prompt, response = string(raw, "prompt"), string(raw, "response", "completion")
        return Text(prompt + response, ((len(prompt), len(prompt) + len(response)),))

    return read


def _conversation(messages: Any, render: Render) -> Text:
    if not isinstance(messages, list) or not all(isinstance(one, dict) and isinstance(one.get("role"), str) for one in messages):
        raise ValueError('\'messages\' is not a list of {"role": .., "content": ..}')
    for number, message in enumerate(messages, 1):
        if not isinstance(message.get("content"), str | list) and not message.keys() - {"role", "content"}:
            raise ValueError(f"the content of turn {number} is not a text")
    text, spans = render(messages, invite=False), []
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before, after = render(messages[:number], invite=True), render(messages[: number + 1], invite=False)
        if not (after.startswith(before) and text.startswith(after)):
            raise ValueError(f"the chat template writes turn {number + 1} otherwise when more turns follow: its answers cannot be told")
        spans.append((len(before), len(after)))
    if not spans:
        raise ValueError("'messages' has no turn of the assistant")
    return Text(text, tuple(spans))
