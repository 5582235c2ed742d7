"""How many targets of a Lustre file system the files of a checkpoint are spread over, by the site's wish."""

from __future__ import annotations

from pathlib import Path

from slurmtrain.config.site import SiteStorage
from slurmtrain.errors import one_line
from slurmtrain.shell import Shell
from slurmtrain.store.mounts import TABLE, mount_of

SET_SECONDS = 30.0


def stripe(folder: Path, site: SiteStorage, shell: Shell, *, mounts: Path = TABLE) -> str | None:
    """Set the stripes of files that will be made in an empty folder on Lustre, where the site asks for any.

    Gives None, or a note where that failed: the checkpoint is then written with the stripes of the folder above. Never raises.
    """
    wish: list[str] = []
    if site.stripe_count is not None:
        wish += ["-c", str(site.stripe_count)]
    if site.stripe_bytes is not None:
        wish += ["-S", str(site.stripe_bytes)]
    mount = mount_of(folder, mounts) if wish else None
    if mount is None or mount.kind != "lustre":
        return None
    done = shell.run(["lfs", "setstripe", *wish, str(folder)], timeout_s=SET_SECONDS)
    return None if done.ok else f"{folder}: lfs setstripe {' '.join(wish)} failed: {one_line(done.err or done.out) or f'rc {done.rc}'}"
