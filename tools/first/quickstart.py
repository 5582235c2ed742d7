"""A training job from submission to its end on this one machine: see --help."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from first.detect import Found, find_slurm  # noqa: E402
from first.drill import LocalDrill, NodeDrill, loss_curve  # noqa: E402

SLURMTRAIN = str(Path(sys.executable).with_name("slurmtrain"))
DEVCLUSTER = [str(ROOT / "tools" / "devcluster")]
JOB = ROOT / "examples" / "tiny-llama.toml"
DATA = ROOT / "examples" / "data" / "stdlib"

DESCRIPTION = """\
Starts a Slurm cluster on this one machine, submits examples/tiny-llama.toml to it on 2 nodes x 4 ranks,
follows the run to its end and tells what to type next. Where Slurm cannot be had, the same ranks run under
mpiexec (site local). Where a Slurm is configured already, nothing is installed and that cluster is offered."""

EXAMPLES = """\
examples:
  ./tools/quickstart                          the run
  ./tools/quickstart --drill node-failure     a node dies halfway; the run comes back by itself
  ./tools/devcluster down                     afterwards: nothing is left behind
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "quickstart", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--drill", choices=["node-failure"], help="kill a node when half of the steps are done")
    parser.add_argument("--root", type=Path, help="where runs live (default: $SLURMTRAIN_ROOT, else ~/slurmtrain-runs)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--local", action="store_true", help="no Slurm: mpiexec on this machine")
    where.add_argument("--devcluster", action="store_true", help="the cluster of our own, even where a Slurm is configured")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="passed on to slurmtrain submit")
    return parser.parse_args()


def say(text: str) -> None:
    print(text, flush=True)


def offer(found: Found) -> int:
    """Name the cluster that is here and what to type; nothing was installed or started."""
    cluster = f"cluster {found.cluster}" if found.cluster else "a Slurm"
    say(f"There is {cluster} on this machine ({'; '.join(found.signs)}). Nothing was installed or started.")
    say("To train there:")
    say(f"    {shlex.quote(SLURMTRAIN)} site list                                        # is your site among them?")
    say(f"    {shlex.quote(SLURMTRAIN)} submit examples/tiny-llama.toml --site SITE --dry-run   # what would be submitted")
    say("To use a private one-machine cluster beside it: ./tools/quickstart --devcluster; without Slurm: ./tools/quickstart --local")
    return 0


def start_cluster(env: dict[str, str]) -> dict[str, str] | None:
    """Start the devcluster, installing Slurm where it lacks; the environment that reaches it, or None where that cannot be."""
    if shutil.which("slurmctld") is None and not Path("/usr/sbin/slurmctld").exists():
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            say(
                "Slurm is not installed and cannot be installed here (that takes root on Debian): running with mpiexec instead, site local."
            )
            return None
        say("Installing Slurm's packages")
        if subprocess.run([*DEVCLUSTER, "install"], env=env, check=False).returncode != 0:
            say("Slurm's packages cannot be had: running with mpiexec instead, site local.")
            return None
    if os.geteuid() != 0:
        say("The one-machine Slurm cluster needs root: running with mpiexec instead, site local.")
        return None
    if subprocess.run([*DEVCLUSTER, "up"], env=env, check=False).returncode != 0:
        say("The one-machine Slurm cluster does not start: running with mpiexec instead, site local.")
        return None
    lines = subprocess.run([*DEVCLUSTER, "env"], env=env, capture_output=True, text=True, check=True).stdout
    words = (shlex.split(line) for line in lines.splitlines())
    return env | dict(word[1].split("=", 1) for word in words if len(word) == 2 and word[0] == "export")


def build_data(env: Mapping[str, str]) -> None:
    """The Python standard library's own sources as byte tokens."""
    if (DATA / "index.json").exists():
        return
    say("Building the data: the Python standard library's sources as byte tokens")
    stdlib = Path(sysconfig.get_path("stdlib"))
    sources = [str(stdlib / name) for name in ("asyncio", "collections", "concurrent", "email", "http", "json", "logging", "unittest")]
    subprocess.run([SLURMTRAIN, "data", "build", *sources, "--out", str(DATA)], env=dict(env), check=True)


def main() -> int:
    args = arguments()
    env = dict(os.environ)
    found = None if args.local or args.devcluster else find_slurm(env)
    if found:
        return offer(found)
    if args.devcluster:
        env.pop("SLURM_CONF", None)
    cluster = None if args.local else start_cluster(env)
    env = cluster or env
    site = "devcluster" if cluster else "local"
    root = args.root or Path(os.environ.get("SLURMTRAIN_ROOT") or Path.home() / "slurmtrain-runs")
    root.mkdir(parents=True, exist_ok=True)
    build_data(env)
    name = time.strftime("tiny-llama-%Y%m%d-%H%M%S")
    run = root / name
    job = [str(JOB), "--site", site, "--root", str(root), "--name", name, *(f"--set={pair}" for pair in args.set)]
    drill = (NodeDrill(run, DEVCLUSTER, env) if cluster else LocalDrill(run)) if args.drill else None
    code = follow_slurm(job, run, env, drill) if cluster else run_local(job, env, drill)
    if drill:
        drill.close()
        say(loss_curve(run))
    say(f"\nThe run folder: {run}")
    say("Next:")
    say('    eval "$(./tools/devcluster env)"; . .venv/bin/activate' if cluster else "    . .venv/bin/activate")
    say(f"    slurmtrain status {run}    slurmtrain logs {run}    ls {run}")
    say(
        f"    slurmtrain submit examples/tiny-llama.toml --site {site} --set training.steps=500 -J my-run"
        if cluster
        else f"    slurmtrain run examples/tiny-llama.toml --site {site} --set training.steps=500 -J my-run"
    )
    if cluster:
        say("    ./tools/quickstart --drill node-failure    ./tools/devcluster down")
    return code


def follow_slurm(job: list[str], run: Path, env: Mapping[str, str], drill: NodeDrill | LocalDrill | None) -> int:
    """Submit, then follow with the live display until the run has ended; its exit code."""
    submitted = subprocess.run([SLURMTRAIN, "submit", *job], env=dict(env), check=False)
    if submitted.returncode != 0:
        return submitted.returncode
    if drill:
        drill.start()
    return subprocess.run([SLURMTRAIN, "status", str(run), "--watch"], env=dict(env), check=False).returncode


def run_local(job: list[str], env: Mapping[str, str], drill: NodeDrill | LocalDrill | None) -> int:
    """The supervisor in the foreground; with a drill, once more with --resume after the ranks were killed."""
    if drill:
        drill.start()
    code = subprocess.run([SLURMTRAIN, "run", *job], env=dict(env), check=False).returncode
    if drill and drill.struck:
        say("The ranks of one node were killed; starting again from the newest checkpoint")
        code = subprocess.run([SLURMTRAIN, "run", *job, "--resume"], env=dict(env), check=False).returncode
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
