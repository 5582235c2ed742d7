"""The batch script of a request: Jinja2 templates that administrators may edit, checked before and after they are rendered.

A template extends `base.sbatch.j2` and overrides its blocks. Names are looked up in the search path of sites and templates;
`{% extends "installed/train.sbatch.j2" %}` names the one that came with slurmtrain.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import Environment, StrictUndefined

from slurmtrain.errors import TemplateError, one_line
from slurmtrain.launch.directives import directive
from slurmtrain.launch.request import LaunchRequest
from slurmtrain.launch.template_check import Source, check_chain

SUFFIX = ".sbatch.j2"
INSTALLED = "installed/"
LAST_LINE = 'exit "$slurmtrain_code"'
NEEDED = ("--nodes", "--ntasks-per-node", "--open-mode", "--comment")
"""Directives without which a run cannot be supervised or found again."""


@dataclass(frozen=True)
class Templates:
    """Where templates are: `find` gives the file of a name (raises TemplateError), `installed` is the folder of slurmtrain's own."""

    find: Callable[[str], Path]
    installed: Path
    read: Callable[[Path], str] = field(default=lambda path: path.read_text(encoding="utf-8"))

    def source(self, name: str) -> Source:
        """The text behind a name as a template writes it, such as `base.sbatch.j2`. Raises TemplateError."""
        if not name.endswith(SUFFIX):
            raise TemplateError(f"template {name!r}: a template's name ends with {SUFFIX}")
        if name.startswith(INSTALLED):
            path = self.installed / name.removeprefix(INSTALLED)
        else:
            path = self.find(name if "/" in name else name.removesuffix(SUFFIX))
        try:
            return Source(name, path, self.read(path))
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "is not text in UTF-8"
            raise TemplateError(f"{path}: cannot read this template: {reason}") from None


def context(request: LaunchRequest, runs: Sequence[str] = ()) -> dict[str, Any]:
    """The names that a template may use. `runs`: the folders of an array whose members are runs."""
    folder = request.python.rpartition("/")[0]
    return {
        "run": request.run,
        "runs": tuple(runs),
        "name": request.name,
        "directives": request.directives,
        "passthrough": request.passthrough,
        "python": request.python,
        "python_folder": folder,
        "modules": request.modules,
        "exports": dict(request.exports),
        "ulimits": dict(request.ulimits),
        "before": request.before,
        "prepare": () if runs else request.prepare,
    }


def render(request: LaunchRequest, templates: Templates, *, runs: Sequence[str] = ()) -> str:
    """The batch script. Raises TemplateError with file, line and name."""
    names = context(request, runs)
    name = request.template if request.template.endswith(SUFFIX) else request.template + SUFFIX
    path = check_chain(name, templates.source, set(names))[0].path
    text = _render(name, templates, names)
    _check_script(text, path)
    if _supervise(templates, names) not in text:
        problem = "block 'supervise' is fixed text: it must stand as in slurmtrain's own base.sbatch.j2 (use `before` and `after`)"
        raise TemplateError(f"{path}: {problem}")
    return text


def _environment(templates: Templates) -> Environment:
    def load(name: str) -> tuple[str, str, Callable[[], bool]]:
        source = templates.source(name)
        return source.text, str(source.path), lambda: True

    made = Environment(
        loader=jinja2.FunctionLoader(load),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701 a shell script, not HTML: the filter q quotes
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["q"] = lambda value: shlex.quote(str(value))
    made.filters["directive"] = directive
    return made


def _render(name: str, templates: Templates, names: Mapping[str, Any]) -> str:
    try:
        return _environment(templates).get_template(name).render(names)
    except TemplateError:
        raise
    except Exception as error:  # noqa: BLE001 a template may fail in any way; the line says where
        where, line = _place(error, templates.source(name).path)
        raise TemplateError(f"{where}:{line}: {one_line(str(error) or type(error).__name__)}") from None


def _place(error: BaseException, path: Path) -> tuple[str, int]:
    """File and line in a template where the error arose: the innermost frame that Jinja2 has named after one."""
    where, line = str(path), getattr(error, "lineno", None) or 1
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.endswith(SUFFIX):
            where, line = file, trace.tb_lineno
        trace = trace.tb_next
    return where, line


def _supervise(templates: Templates, names: Mapping[str, Any]) -> str:
    template = _environment(templates).get_template(f"{INSTALLED}base{SUFFIX}")
    return "".join(template.blocks["supervise"](template.new_context(dict(names)))).strip()


def _check_script(text: str, path: Path) -> None:
    lines = text.splitlines()
    if not lines or not lines[0].startswith("#!"):
        raise TemplateError(f"{path}: the script's first line must be #!/bin/bash, not {(lines or [''])[0]!r}")
    last = next(line for line in reversed(lines) if line.strip())
    if last != LAST_LINE:
        raise TemplateError(f"{path}: the script's last line must be {LAST_LINE}, not {one_line(last, 80)!r}")
    commands = [n for n, line in enumerate(lines) if line.strip() and not line.startswith("#")]
    for number, line in enumerate(lines):
        if line.startswith("#SBATCH") and number > commands[0]:
            problem = f"{one_line(line, 80)!r} comes after a command ({one_line(lines[commands[0]], 40)!r}), so sbatch would not read it"
            raise TemplateError(f"{path}: {problem}: put it into the block `header`")
    said = set(re.findall(r"^#SBATCH.*?(--[a-z-]+)", text, re.MULTILINE))
    missing = [option for option in NEEDED if option not in said]
    if missing:
        raise TemplateError(f"{path}: block 'header' drops {', '.join(missing)}: begin the override with {{{{ super() }}}}")
