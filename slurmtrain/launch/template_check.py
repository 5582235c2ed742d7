"""What can be said of a template before it is rendered: its blocks, its parents, the names that it uses."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, TemplateSyntaxError, meta, nodes

from slurmtrain.errors import TemplateError, one_line

REQUIRED = ("header", "environment", "before", "supervise", "after")
"""Blocks of base.sbatch.j2: the contract."""
NEVER_EMPTY = ("header", "environment", "supervise")


@dataclass(frozen=True)
class Source:
    """A template's name as templates write it, its file and its text."""

    name: str
    path: Path
    text: str


def check_chain(name: str, source: Callable[[str], Source], known: set[str]) -> list[Source]:
    """The template and its parents, youngest first, all checked. `known`: the names that a template may use. Raises TemplateError."""
    chain: list[tuple[Source, nodes.Template]] = []
    following: str | None = name
    while following is not None:
        found = source(following)
        if any(found.path == before.path for before, _ in chain):
            advice = f'to build on slurmtrain\'s own, extend "installed/{found.path.name}"'
            raise TemplateError(f"{found.path}: this template extends itself: {advice}")
        tree = _parse(found)
        chain.append((found, tree))
        following = _parent(found, tree)
    for found, tree in chain:
        _check_names(found, tree, known)
    _check_blocks(chain)
    return [found for found, _ in chain]


def _parse(source: Source) -> nodes.Template:
    environment = Environment()  # noqa: S701 parsed, not rendered
    environment.filters.update(q=str, directive=str)
    try:
        tree = environment.parse(source.text)
        meta.find_undeclared_variables(tree)  # compiles: an unknown filter or test is found here
    except TemplateSyntaxError as error:
        raise TemplateError(f"{source.path}:{error.lineno}: {one_line(error.message or 'not a template')}") from None
    return tree


def _parent(source: Source, tree: nodes.Template) -> str | None:
    found = list(tree.find_all(nodes.Extends))
    if not found:
        return None
    if len(found) > 1 or not isinstance(found[0].template, nodes.Const):
        raise TemplateError(f'{source.path}:{found[-1].lineno}: a template extends one other, by name: {{% extends "base.sbatch.j2" %}}')
    return str(found[0].template.value)


def _check_names(source: Source, tree: nodes.Template, known: set[str]) -> None:
    unknown = meta.find_undeclared_variables(tree) - known
    if not unknown:
        return
    line, name = min((node.lineno, node.name) for node in tree.find_all(nodes.Name) if node.name in unknown)
    near = difflib.get_close_matches(name, known, n=1)
    advice = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}"
    raise TemplateError(f"{source.path}:{line}: unknown name {name!r}: {advice}")


def _check_blocks(chain: list[tuple[Source, nodes.Template]]) -> None:
    oldest, tree = chain[-1]
    inherited = {block.name for block in tree.find_all(nodes.Block)}
    for name in REQUIRED:
        if name not in inherited:
            raise TemplateError(f'{oldest.path}: block {name!r} is missing: a template extends "base.sbatch.j2", or has all of its blocks')
    for source, tree in reversed(chain):
        for block in tree.find_all(nodes.Block):
            if block.name in NEVER_EMPTY and _is_empty(block):
                raise TemplateError(f"{source.path}:{block.lineno}: block {block.name!r} is dropped: begin with {{{{ super() }}}}")
    for source, tree in reversed(chain[:-1]):
        for block in _top_level(source, tree):
            if block.name not in inherited:
                near = difflib.get_close_matches(block.name, inherited, n=1)
                advice = f"did you mean {near[0]!r}?" if near else f"its parent has {', '.join(sorted(inherited))}"
                raise TemplateError(f"{source.path}:{block.lineno}: block {block.name!r} would never be rendered: {advice}")
        inherited |= {block.name for block in tree.find_all(nodes.Block)}


def _is_empty(block: nodes.Block) -> bool:
    return all(
        isinstance(node, nodes.Output) and all(isinstance(part, nodes.TemplateData) and not part.data.strip() for part in node.nodes)
        for node in block.body
    )


def _top_level(source: Source, tree: nodes.Template) -> Iterator[nodes.Block]:
    """Blocks of a child that stand in no other block. Raises TemplateError for text outside of blocks, which Jinja2 would drop silently."""
    for node in tree.body:
        if isinstance(node, nodes.Block):
            yield node
        elif isinstance(node, nodes.Output):
            for part in node.nodes:
                if not isinstance(part, nodes.TemplateData) or part.data.strip():
                    problem = "text outside of a block would never be rendered: put it into `before` or another block"
                    raise TemplateError(f"{source.path}:{part.lineno}: {problem}")
