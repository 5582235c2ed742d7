"""Model shapes by name: one TOML file each in `presets/`, with its source; `[model] preset = "llama3-8b"` starts from one."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from slurmtrain.config.draft import Draft
from slurmtrain.config.keys import meant, near_words
from slurmtrain.config.model import ModelConfig
from slurmtrain.config.tomlfile import read_toml
from slurmtrain.errors import ConfigError


def _folder() -> Path:
    return Path(str(files("slurmtrain.config") / "presets"))


def preset_names() -> list[str]:
    """Names of all presets, small models first."""
    sizes = {path.stem: ModelConfig(**preset_shape(path.stem)).parameters() for path in _folder().glob("*.toml")}
    return sorted(sizes, key=lambda name: (sizes[name], name))


def preset_shape(name: str) -> dict[str, Any]:
    """The keys of [model] that a preset says."""
    return read_toml(_folder() / f"{name}.toml", "preset")


def merge_preset(draft: Draft) -> None:
    """Put the shape of `model.preset` under the keys that the job says itself. Raises ConfigError."""
    name, model = draft.get("model.preset"), draft.get("model")
    if not isinstance(name, str) or not isinstance(model, dict):
        return
    names = preset_names()
    if name not in names:
        near = meant(near_words(name, names))
        problem = f"no such preset{near} {'There' if near else '(there'} are: {_folded(names)}{'' if near else ')'}"
        raise ConfigError(problem, where=draft.where("model.preset"), key="model.preset", value=name)
    draft.values["model"] = {**preset_shape(name), **model}


def _folded(names: list[str]) -> str:
    """Names of one series as one word.

    >>> _folded(["tiny", "gpt2", "qwen3-4b", "llama3-8b", "qwen3-8b"])
    'tiny, gpt2, qwen3-4b/8b, llama3-8b'
    """
    series: dict[str, list[str]] = {}
    for name in names:
        stem, dash, size = name.rpartition("-")
        series.setdefault(stem + dash, []).append(size)
    return ", ".join(f"{stem}{'/'.join(sizes)}" if stem else ", ".join(sizes) for stem, sizes in series.items())
