"""The command line: `devcluster up | down | status | env | fail | hang | restore | install`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from . import faults, lifecycle, packages, suites
from .spec import SUITES, TIMINGS, TOPOLOGIES, DevclusterError, Folder, Spec, choose_folder

EXAMPLES = """examples:
  tools/devcluster up                        6 nodes x 4 GPUs
  eval "$(tools/devcluster env)"             this shell's sbatch, srun, squeue talk to it
  tools/devcluster fail n2                   node n2 loses power
  tools/devcluster restore n2
  tools/devcluster down                      every process and file of it is gone
"""


def parser() -> argparse.ArgumentParser:
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument("--dir", default="", help="the cluster's folder (default: below $XDG_STATE_HOME, or that of `devcluster env`)")
    where.add_argument("--name", default="", help="another cluster beside the default one, in a folder of this name")
    top = argparse.ArgumentParser(
        prog="devcluster",
        description="A real Slurm cluster on this one machine, for development and tests.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    up = commands.add_parser("up", parents=[where], help="start a cluster and wait until its nodes are idle")
    up.add_argument("--nodes", type=int, default=6, help="number of nodes (default 6)")
    up.add_argument("--gpus", type=int, default=4, help="GPUs per node, pretended (default 4)")
    up.add_argument("--timings", choices=TIMINGS, default="fast", help="fast: node death noticed in 10 s; default: as real sites have it")
    up.add_argument("--topology", choices=TOPOLOGIES, default="tree", help="two leaf switches, or NVLink blocks of two nodes")
    up.add_argument("--install", action="store_true", help="first install Debian's Slurm packages where they are missing")
    install = commands.add_parser("install", help="install Debian's Slurm packages where they are missing; starts no daemon")
    for command in (up, install):
        command.add_argument("--suite", choices=SUITES, default="", help="that Debian's Slurm, under chroot (bookworm 22.05, trixie 24.11)")
        command.add_argument("--accounting", action="store_true", help="with slurmdbd on a MariaDB, so that sacct works")
    for name, text in (("down", "end the cluster and remove its folder"), ("status", "what runs; exit code 1 when something does not")):
        commands.add_parser(name, parents=[where], help=text)
    commands.add_parser("env", parents=[where], help="print the export lines that a shell needs")
    for name, text in (("fail", "kill nodes"), ("hang", "freeze nodes (SIGSTOP)"), ("restore", "bring nodes back, and wait for them")):
        commands.add_parser(name, parents=[where], help=text).add_argument("nodes", metavar="NODE", nargs="+")
    return top


def run(argv: Sequence[str]) -> int:
    """Do what the command line says; the exit code."""
    args = parser().parse_args(argv)
    if args.command == "install":
        _install(args)
        return 0
    folder = choose_folder(args.dir, args.name, os.environ)
    if args.command == "up":
        if args.install:
            _install(args)
        print(lifecycle.up(folder, Spec(args.nodes, args.gpus, args.timings, args.topology, args.accounting, args.suite)))
    elif args.command == "down":
        print(lifecycle.down(folder))
    elif args.command == "status":
        return _status(folder)
    elif args.command == "env":
        for name, value in lifecycle.env(folder).items():
            print(f"export {name}={quote(value)}")
    else:
        deed = {"fail": faults.fail, "hang": faults.hang, "restore": faults.restore}[args.command]
        print("\n".join(deed(folder, args.nodes)))
    return 0


def _install(args: argparse.Namespace) -> None:
    if args.suite:
        print(suites.install_suite(args.suite, accounting=args.accounting, environ=os.environ))
    else:
        print(packages.install(accounting=args.accounting, environ=os.environ))


def _status(folder: Folder) -> int:
    healthy, lines = lifecycle.status(folder)
    print("\n".join(lines))
    return 0 if healthy else 1


def quote(value: str) -> str:
    """The value in single quotes, as a POSIX shell reads it."""
    return "'" + value.replace("'", "'\\''") + "'"


def main() -> int:
    """Entry point: a mistake or a refusal is one message on stderr and exit code 2."""
    try:
        return run(sys.argv[1:])
    except DevclusterError as error:
        print(f"devcluster: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
