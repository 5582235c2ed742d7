"""Sites: where their files are searched, which one is meant, and one of them read.

Search path, first hit wins: the folders of $SLURMTRAIN_SITE_PATH, ~/.config/slurmtrain, /etc/slurmtrain, the installed ones. A
site is NAME.toml there, an sbatch template NAME.sbatch.j2. Which site: the option, else $SLURMTRAIN_SITE, else the one whose
`slurm.clusters` name the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from slurmtrain.config.draft import Draft
from slurmtrain.config.keys import meant, near_words
from slurmtrain.config.policy import POLICY_PATH, apply_policy
from slurmtrain.config.site import SiteConfig
from slurmtrain.config.tomlfile import read_toml
from slurmtrain.errors import ConfigError, TemplateError

Kind = Literal["site", "template"]
SUFFIX: dict[Kind, str] = {"site": ".toml", "template": ".sbatch.j2"}
_INSTALLED: dict[Kind, str] = {"site": "slurmtrain.site_configs", "template": "slurmtrain.sbatch_templates"}
_NOT_SITES = frozenset({"policy"})
HOW_TO_CHOOSE = "choose one with --site NAME or SLURMTRAIN_SITE=NAME, or name the cluster under slurm.clusters of a site file"


def search_path(env: Mapping[str, str], kind: Kind = "site") -> list[Path]:
    """Folders that hold site files or templates, first hit first; they need not exist."""
    own = [Path(folder) for folder in env.get("SLURMTRAIN_SITE_PATH", "").split(":") if folder]
    home = [Path(env["HOME"]) / ".config" / "slurmtrain"] if env.get("HOME") else []
    return [*own, *home, Path("/etc/slurmtrain"), Path(str(files(_INSTALLED[kind])))]


def all_files(kind: Kind, env: Mapping[str, str]) -> dict[str, Path]:
    """Every name on the search path with its file; a file earlier on the path hides later ones of its name."""
    found: dict[str, Path] = {}
    for folder in search_path(env, kind):
        for path in _listed(folder, SUFFIX[kind]):
            name = path.name.removesuffix(SUFFIX[kind])
            if not (kind == "site" and name in _NOT_SITES):
                found.setdefault(name, path)
    return found


def _listed(folder: Path, suffix: str) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.name.endswith(suffix) and path.is_file())
    except OSError:
        return []


def find_file(kind: Kind, name: str, env: Mapping[str, str]) -> Path:
    """The file of a site or template: by name on the search path, or as it is where `name` is a path (it ends in the suffix).

    Raises ConfigError (site) or TemplateError (template) with the names that there are.
    """
    error = ConfigError if kind == "site" else TemplateError
    known = all_files(kind, env)
    if name in known:
        return known[name]
    bare = Path(name.removesuffix(SUFFIX[kind]))
    if bare.is_file() and (str(bare) == name or not Path(name).is_file()):
        raise error(f"{bare}: the file of a {kind} ends in {SUFFIX[kind]}: rename it")
    if name.endswith(SUFFIX[kind]):
        return Path(name)
    near = meant(near_words(name, list(known)))
    raise error(f"no {kind} {name!r}{near or ':'} {'There' if near else 'there'} are {', '.join(sorted(known)) or 'none'}")


def list_sites(env: Mapping[str, str]) -> list[tuple[str, Path, str]]:
    """Name, file and description of each site, by name; of a broken file the description says what is wrong."""
    return [(name, path, _description(path)) for name, path in sorted(all_files("site", env).items())]


def _description(path: Path) -> str:
    try:
        return str(_read(path).get("description", ""))
    except ConfigError as error:
        return f"(broken: {error.problem})"


def _read(path: Path) -> dict[str, Any]:
    return read_toml(path, "site file")


def load_site(name: str, env: Mapping[str, str], *, policy_path: Path = POLICY_PATH) -> SiteConfig:
    """A site by name, or by the path of a file that ends in .toml. Raises ConfigError as for jobs."""
    path = find_file("site", name, env)
    draft = Draft(_read(path), str(path))
    draft.values.setdefault("name", path.stem)
    apply_policy(draft, SiteConfig, policy_path)
    return draft.build(SiteConfig)


def find_site(cluster_name: str, env: Mapping[str, str], *, policy_path: Path = POLICY_PATH) -> SiteConfig | None:
    """The site whose slurm.clusters match this ClusterName, nearest on the search path; None where no site does.

    Raises ConfigError when two files of one folder claim the cluster, or the file found is wrong.
    """
    claims = [path for path in all_files("site", env).values() if _claims(path, cluster_name)]
    for folder in search_path(env):
        here = [path for path in claims if path.parent == folder]
        if len(here) > 1:
            both = " and ".join(path.stem for path in here)
            raise ConfigError(f"cluster {cluster_name!r} is claimed by the sites {both}: {HOW_TO_CHOOSE}", where=str(folder))
        if here:
            return load_site(str(here[0]), env, policy_path=policy_path)
    return None


def _claims(path: Path, cluster_name: str) -> bool:
    try:
        slurm = _read(path).get("slurm", {})
    except ConfigError:
        return False  # a broken file is told when it is asked for, and by `site list`
    patterns = slurm.get("clusters", ()) if isinstance(slurm, dict) else ()
    return _matches(cluster_name, patterns if isinstance(patterns, list) else ())


def _matches(name: str, patterns: Iterable[object]) -> bool:
    return any(isinstance(pattern, str) and fnmatchcase(name, pattern) for pattern in patterns)


def choose_site(
    option: str | None, env: Mapping[str, str], cluster_name: Callable[[], str | None], *, policy_path: Path = POLICY_PATH
) -> SiteConfig:
    """The site that is meant. `cluster_name` asks Slurm, and is called only when neither option nor variable says.

    Raises ConfigError that lists the sites and how to choose one.
    """
    said = option or env.get("SLURMTRAIN_SITE")
    if said:
        return load_site(said, env, policy_path=policy_path)
    cluster = cluster_name()
    found = find_site(cluster, env, policy_path=policy_path) if cluster else None
    if found:
        return found
    why = f"no site names the cluster {cluster!r}" if cluster else "no site is chosen, and no Slurm tells a cluster's name"
    raise ConfigError(f"{why}: {HOW_TO_CHOOSE}. There are: {', '.join(sorted(all_files('site', env)))}")
