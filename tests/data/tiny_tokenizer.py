"""A byte-level BPE tokenizer trained on a few lines, as Hugging Face saves one, with a chat template."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SPECIAL = ["<|end_of_text|>", "<|im_start|>", "<|im_end|>"]
LINES = ["the node trains the model and saves the steps", "grüße, 你好 and a rank of the world"] * 20


def tiny_tokenizer(folder: Path, *, template: str | None = None, eos: str | None = "<|end_of_text|>") -> Path:
    """A folder with tokenizer.json, whose post-processor adds a token in front (which a document must not get)."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        LINES, trainers.BpeTrainer(vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    )
    made.post_processor = processors.TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    made.enable_truncation(4)
    made.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **({"eos_token": eos} if eos else {}),
        **({"chat_template": template} if template else {}),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
