"""A process that has loaded torch, and forks the ranks of tests' worlds: a world of four starts in a second instead of six.

`mpiexec` starts a small stub for each rank. The stub hands its environment, its standard files and its descriptor of the process
manager to the zygote over a socket; the zygote forks, the child is the rank, and the stub ends with the child's code. A stub that is
killed takes its child along. The zygote has one thread, and neither MPI nor process groups, when it forks; it ends with the
process that started it.

    python -m tests.zygote SOCKET            the zygote
    python -S tests/zygote.py SOCKET ARGS    a stub; ARGS are those of tests.mpi_world
"""

import array
import contextlib
import json
import os
import socket
import sys

STANDARD = (0, 1, 2)


def stub(path, args):
    """Be a rank by proxy; the child's exit code (128 + signal where one ended it)."""
    manager = [int(os.environ["PMI_FD"])] if "PMI_FD" in os.environ else []
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.connect(path)
    cwd = os.getcwd()  # noqa: PTH109 pathlib takes time to load
    order = json.dumps({"args": args, "env": dict(os.environ), "cwd": cwd, "fds": [*STANDARD, *manager]}).encode()
    rights = array.array("i", [*STANDARD, *manager])
    link.sendmsg([len(order).to_bytes(4, "little")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    link.sendall(order)
    answer = b""
    while not answer.endswith(b"\n"):
        got = link.recv(64)
        if not got:
            return 70
        answer += got
    return int(answer)


def serve(path):
    """Fork ranks until standard input ends."""
    import selectors

    import tests.zygote_modules  # noqa: F401 what every rank would load anyway

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(64)
    print("ready", flush=True)
    chooser = selectors.DefaultSelector()
    chooser.register(listener, selectors.EVENT_READ, "new")
    chooser.register(0, selectors.EVENT_READ, "end")
    while True:
        for key, _ in chooser.select():
            if key.data == "end":
                _end_all(chooser)
                return
            if key.data == "new":
                _adopt(listener, chooser)
            elif key.fd in chooser.get_map():  # not both of a child that ended with its stub
                _ended(chooser, *key.data)


def _adopt(listener, chooser):
    link, _ = listener.accept()
    head, ancillary, _, _ = link.recvmsg(4, socket.CMSG_SPACE(16 * 4))
    rights = array.array("i")
    for _, _, data in ancillary:
        rights.frombytes(data[: len(data) - len(data) % 4])
    size, order = int.from_bytes(head, "little"), b""
    while len(order) < size:
        order += link.recv(size - len(order))
    pid = os.fork()
    if pid == 0:
        _be_rank(json.loads(order), list(rights))
    for fd in rights:
        os.close(fd)
    handle = os.pidfd_open(pid)
    chooser.register(handle, 1, (pid, handle, link))
    chooser.register(link, 1, (pid, handle, link))


def _ended(chooser, pid, handle, link):
    """The child is done, or its stub is gone."""
    import signal

    chooser.unregister(handle)
    chooser.unregister(link)
    done, status = os.waitpid(pid, os.WNOHANG)
    if not done:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    with contextlib.suppress(OSError):  # nobody waits for it
        link.sendall(b"%d\n" % (code if code >= 0 else 128 - code))
    link.close()
    os.close(handle)


def _end_all(chooser):
    """The process that started this one is gone: so are the ranks."""
    import signal

    for key in list(chooser.get_map().values()):
        if isinstance(key.data, tuple) and key.fd == key.data[1]:
            signal.pidfd_send_signal(key.fd, signal.SIGKILL)


def _be_rank(order, rights):
    """Never returns."""
    code = 1
    try:
        kept = [os.dup2(os.dup(fd), 200 + i) for i, fd in enumerate(rights)]
        os.closerange(3, 200)
        for fd, number in zip(kept, order["fds"], strict=True):
            os.dup2(fd, number)
            os.close(fd)
        os.environ.clear()
        os.environ.update(order["env"])
        os.chdir(order["cwd"])
        from tests.mpi_world import _rank_main

        _rank_main(*order["args"])
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
        if isinstance(error.code, str):
            sys.stderr.write(error.code + "\n")
    except BaseException:  # noqa: BLE001 the child ends here whatever happened
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        if code == 0:
            _leave_mpi()
        os._exit(code)


def _leave_mpi():
    """Wait for the other ranks, as MPI's end does: mpiexec takes one that goes earlier for lost, and ends the rest."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized():
        return
    if not mpi.Is_finalized():
        mpi.Finalize()
    from slurmtrain.runtime.finish import exit_process

    exit_process(0)


if __name__ == "__main__":
    if sys.flags.no_site:
        sys.exit(stub(sys.argv[1], sys.argv[2:]))
    serve(sys.argv[1])
