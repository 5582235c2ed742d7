"""`slurmtrain data`: tokens made, looked at, converted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurmtrain.cli.bars import bar
from slurmtrain.cli.batch import batch_options, ended_by_sigterm, output_beside, sent_to_batch
from slurmtrain.cli.options import examples
from slurmtrain.cli.paths import UserPath

if TYPE_CHECKING:
    from slurmtrain.data.encode import Encoder
    from slurmtrain.data.inspection import Look

FORMATS = click.Choice(["folder", "megatron", "hdf5"])
_WIDE: dict[str, Any] = {"max_content_width": 110}


@click.group(epilog=examples("slurmtrain data build ~/corpus --out /scratch/me/tokens", "slurmtrain data inspect /scratch/me/tokens"))
def command() -> None:
    """Build, inspect and convert tokens that a job file's [data] names."""


@command.command(
    short_help="Turn text into indexed tokens.",
    context_settings=_WIDE,
    epilog=examples(
        "slurmtrain data build /usr/lib/python3.11 --out data/python",
        "slurmtrain data build web/ --key text --tokenizer ~/models/llama --out data/web --batch -t 4h",
        "slurmtrain data build chats.jsonl --answers --tokenizer ~/models/qwen --out data/chats",
    ),
)
@click.argument("paths", nargs=-1, required=True, type=UserPath())
@click.option("--out", required=True, type=UserPath(), help="Folder to make (or prefix, or file: --format).")
@click.option("--force", is_flag=True, help="Replace other tokens that are there.")
@click.option("--tokenizer", type=UserPath(), help="tokenizer.json, or a folder with one [default: bytes].")
@click.option("--eod", default=None, metavar="TOKEN", help="Token that ends a document [default: the tokenizer's end of text].")
@click.option("--key", default=None, metavar="KEY", help="Read JSON lines: a document is the text under this key.")
@click.option("--answers", is_flag=True, help="Read JSON lines: prompt and response, or messages; the answers are marked.")
@click.option("--format", "kind", type=FORMATS, default="folder", show_default=True, help="What to make.")
@batch_options
@click.pass_context
def build(ctx: click.Context, /, paths: tuple[Path, ...], out: Path, **said: Any) -> None:
    """Turn text files, folders of them, or JSON lines into indexed tokens.

    A file is a document, or a line of JSON is. Without a tokenizer each byte is a token.
    """
    from slurmtrain.data import build as builder
    from slurmtrain.data.texts import LINES, SUFFIXES, check_paths, find_texts
    from slurmtrain.data.writing import check_place
    from slurmtrain.errors import UserError

    if said["key"] and said["answers"]:
        raise UserError("--key names the text of JSON lines, --answers reads prompts and messages: give one of them")
    if said["eod"] and not said["tokenizer"]:
        raise UserError("--eod names a token of a tokenizer: give --tokenizer, bytes end documents by 256")
    check_paths(paths)
    check_place(out, said["kind"], force=said["force"])
    encoder = _encoder(said["tokenizer"], said["eod"])
    if sent_to_batch(ctx, said, ["data", "build", *map(str, paths), *_again(said, out=out)], output=output_beside(out, "data")):
        return
    suffixes = LINES if said["key"] or said["answers"] else SUFFIXES
    total = sum(path.stat().st_size for path in find_texts(paths, suffixes))
    with ended_by_sigterm(), bar("reading", total) as advance:
        done = builder.build(
            paths,
            out,
            encoder=encoder,
            key=said["key"],
            answers=said["answers"],
            kind=said["kind"],
            force=said["force"],
            advance=advance,
        )
    _tell(done.tokens, done.documents, "folder" if said["kind"] == "folder" else "tokens in", done.folder, unchanged=done.unchanged)
    if suffixes is not LINES:
        _note_lines(paths, LINES)


@command.command(
    short_help="Write tokens in another format.",
    context_settings=_WIDE,
    epilog=examples("slurmtrain data convert web_text_document --to folder --out data/web --vocab 50257 --eod 50256"),
)
@click.argument("path", type=UserPath())
@click.option("--to", "kind", type=FORMATS, required=True, help="What to make.")
@click.option("--out", required=True, type=UserPath(), help="Folder, prefix of a .bin/.idx pair, or .h5 file.")
@click.option("--vocab", type=click.IntRange(min=1), default=None, metavar="N", help="Of the tokens, where their format does not tell.")
@click.option("--eod", type=click.IntRange(min=0), default=None, metavar="N", help="Number of the token that ends a document.")
@click.option("--force", is_flag=True, help="Replace other tokens that are there.")
@batch_options
@click.pass_context
def convert(ctx: click.Context, /, path: Path, out: Path, **said: Any) -> None:
    """Write tokens in another format: a folder, a Megatron .bin/.idx pair, or an HDF5 file."""
    from slurmtrain.data.convert import convert as converted
    from slurmtrain.data.summary import summarize
    from slurmtrain.data.writing import check_place

    _check_tokens(path)
    check_place(out, said["kind"], force=said["force"])
    if sent_to_batch(
        ctx, said, ["data", "convert", str(path), *_again(said, out=out, renamed={"kind": "to"})], output=output_beside(out, "data")
    ):
        return
    with ended_by_sigterm(), bar("converting", summarize(path).tokens) as advance:
        done = converted(path, out, said["kind"], vocab=said["vocab"], eod=said["eod"], force=said["force"], advance=advance)
    _tell(done.tokens, done.documents, "tokens in", out, unchanged=done.unchanged)


@command.command(context_settings=_WIDE, epilog=examples("slurmtrain data inspect data/chats --document 3"))
@click.argument("path", type=UserPath())
@click.option("--document", "number", type=click.IntRange(min=0), default=0, metavar="N", help="Which document to show, from 0.")
@click.option("--tokens", "most", type=click.IntRange(min=1), default=200, show_default=True, metavar="N", help="How much of it.")
@click.option("--tokenizer", type=UserPath(), help="What decodes it, where the tokens do not say.")
@click.option("--verify", is_flag=True, help="Compare the sums of all files, too.")
@click.pass_context
def inspect(ctx: click.Context, /, path: Path, number: int, tokenizer: Path | None, **said: Any) -> None:
    """Show what tokens are, and a document of them as text."""
    from slurmtrain.data.inspection import look

    _check_tokens(path)
    seen = look(path, number=number, encoder=_decoder(tokenizer), **said)
    for label, text in _facts(seen):
        click.echo(f"{label:<11} {text}")
    click.echo(f"\ndocument {number}")
    click.echo(_shown(seen))
    if seen.faults:
        ctx.exit(1)


def _check_tokens(path: Path) -> None:
    """Raises UserError for a path without tokens: damaged ones are another matter."""
    from slurmtrain.data.index import INDEX_NAME
    from slurmtrain.data.summary import format_of
    from slurmtrain.errors import DataError, UserError

    try:
        kind = format_of(path)
    except DataError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from error
    if kind == "folder" and not (path / INDEX_NAME).exists():
        raise UserError(f"{path}: a folder without {INDEX_NAME}, so not of tokens: slurmtrain data build makes one")


def _note_lines(paths: tuple[Path, ...], suffixes: tuple[str, ...]) -> None:
    for path in paths:
        if path.suffix.lower() in suffixes:
            click.echo(f"note: {path} was read as plain text, JSON and all: --key or --answers reads its lines", err=True)


def _facts(seen: Look) -> Iterator[tuple[str, str]]:
    told = seen.told
    yield "path", str(told.path)
    yield "format", told.format
    yield "tokens", str(told.tokens)
    yield "documents", f"{told.documents} of {seen.lengths[0]} to {seen.lengths[2]} tokens, median {seen.lengths[1]}"
    yield "vocabulary", "not told" if told.vocab is None else str(told.vocab)
    yield "ends with", "not told" if told.eod is None else str(told.eod)
    yield "answers", "none marked" if seen.answered is None else f"{100 * seen.answered:.1f} % of the tokens"
    if seen.faults is not None:
        yield "sums", "; ".join(seen.faults) or "as written"


def _shown(seen: Look) -> str:
    """The document in words, answers between marks; in numbers where nothing decodes it."""
    if seen.parts is None:
        return " ".join(map(str, seen.document))
    return "".join(f"[answer]{text}[/answer]" if marked else text for text, marked in seen.parts)


def _encoder(path: Path | None, eod: str | None) -> Encoder | None:
    from slurmtrain.data.encode import HubTokenizer

    return None if path is None else HubTokenizer.load(path, eod=eod)


def _decoder(path: Path | None) -> Encoder | None:
    from slurmtrain.data.encode import HubTokenizer

    return None if path is None else HubTokenizer.load(path, eod=-1)


def _tell(tokens: int, documents: int, label: str, where: Path, *, unchanged: bool) -> None:
    click.echo(f"tokens     {tokens}")
    click.echo(f"documents  {documents}")
    click.echo(f"{label:<10} {where}{' (unchanged)' if unchanged else ''}")


def _again(said: dict[str, Any], *, out: Path, renamed: dict[str, str] | None = None) -> Iterator[str]:
    """The command's own options as words, for a job that does the same."""
    yield f"--out={os.path.abspath(out)}"  # noqa: PTH100 links stay
    for name in ("tokenizer", "eod", "key", "kind", "vocab"):
        if said.get(name) is not None:
            yield f"--{(renamed or {'kind': 'format'}).get(name, name)}={said[name]}"
    yield from (f"--{name}" for name in ("force", "answers") if said.get(name))
