"""slurmdbd on a MariaDB of the cluster's own, so that `sacct` works: data, socket and account lie in the cluster's folder."""

from __future__ import annotations

import secrets
import socket
import subprocess
from pathlib import Path

from . import conf
from .daemons import Cluster
from .spec import DevclusterError, Folder

SQL_FOLDERS = ("usr/share/mysql", "usr/share/mariadb")
SQL_FILES = ("*_system_tables.sql", "*_performance_tables.sql", "*_system_tables_data.sql")
"""As mariadb-install-db feeds them, without help texts: called `mysql_...` up to 10.11, `mariadb_...` from 11 on."""
START_LIMIT_S = 60.0


def start_database(cluster: Cluster) -> None:
    """The database server on a port of 127.0.0.1; ready when it accepts connections."""
    folder, port = cluster.folder, cluster.record.ports.database
    if not _data(folder).exists():
        _create(cluster)
    argv = [*_server(folder), "--bind-address=127.0.0.1", f"--port={port}", f"--socket={folder.run}/database", "--skip-name-resolve"]
    cluster.start(
        "database", [*argv, f"--pid-file={folder.run}/database-own.pid", "--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900"]
    )
    cluster.wait_for("database", lambda: accepts(port), START_LIMIT_S)


def start_slurmdbd(cluster: Cluster) -> None:
    """slurmdbd; ready when it accepts connections. Then the cluster, an account and root are made known, once."""
    cluster.start("slurmdbd", ["slurmdbd", "-D"])
    cluster.wait_for("slurmdbd", lambda: accepts(cluster.record.ports.slurmdbd), START_LIMIT_S)
    for words in (("cluster", "devcluster"), ("account", "default"), ("user", "root", "account=default", "adminlevel=admin")):
        said = cluster.ask("sacctmgr", "-i", "add", *words)
        if said.returncode and "already exist" not in said.stdout + said.stderr and "Nothing new" not in said.stdout + said.stderr:
            raise DevclusterError(f"sacctmgr add {' '.join(words)}: {said.stderr.strip()}\n{cluster.tail('slurmdbd')}")


def accepts(port: int) -> bool:
    """Whether something listens on the port of 127.0.0.1."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _data(folder: Folder) -> Path:
    return folder.state / "database"


def _server(folder: Folder) -> list[str]:
    return ["mariadbd", "--no-defaults", "--user=root", f"--datadir={_data(folder)}"]


def _create(cluster: Cluster) -> None:
    folder = cluster.folder
    password = secrets.token_urlsafe(18)
    secret = folder.etc / "slurmdbd.conf"
    secret.touch(mode=0o600)  # slurmdbd refuses a file that others can read
    secret.write_text(conf.slurmdbd_conf(cluster.record, folder, password))
    _data(folder).mkdir()
    made = subprocess.run(
        cluster.argv([*_server(folder), "--bootstrap", "--log-warnings=0"]),
        input=_bootstrap_sql(Path("/", cluster.root), password), env=cluster.environ(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode:
        raise DevclusterError(f"the database could not be created: {made.stderr[-2000:]}")


def _bootstrap_sql(root: Path, password: str) -> str:
    found = [next((p for place in SQL_FOLDERS for p in (root / place).glob(pattern)), None) for pattern in SQL_FILES]
    if missing := [pattern for pattern, path in zip(SQL_FILES, found, strict=True) if path is None]:
        raise DevclusterError(f"MariaDB's own tables are not in {root / SQL_FOLDERS[0]} ({', '.join(missing)})")
    tables = [path.read_text() for path in found if path is not None]
    ours = [
        "CREATE DATABASE slurm_acct_db;",  # left to slurmdbd, it connects twice with one handle, which libmariadb of Debian 13 cannot
        "FLUSH PRIVILEGES;",
        f"CREATE USER slurm@'127.0.0.1' IDENTIFIED BY '{password}';",
        "GRANT ALL ON *.* TO slurm@'127.0.0.1';",
        "DELETE FROM mysql.global_priv WHERE User <> 'slurm';",  # root has no password there
    ]
    return "\n".join(["CREATE DATABASE mysql;", "USE mysql;", "SET @auth_root_socket=NULL;", *tables, *ours]) + "\n"
