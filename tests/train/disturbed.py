"""Entry of a rank with something made to happen on rank 1 (TEST_DISTURB: what, at which step), for tests of the whole program.

The product knows nothing of this: the loader, the model or the writer is wrapped before the trainer's own main runs.
"""

from __future__ import annotations

import os
import signal
import sys

from slurmtrain.train import __main__ as program

WHAT, STEP = os.environ["TEST_DISTURB"].split("@")


def disturb(session):
    if session.world.rank != 1:
        return
    deeds = {"loader": fail_in_loader, "forward": fail_in_forward, "save": fail_in_save, "signal": send_signal, "kill": kill}
    deeds[WHAT](session, int(STEP))


def before_batch(session, step, deed):
    batches = session.batches
    inner = type(batches).__next__

    def following(self):
        if self is batches and session.progress.step + 1 == step:
            deed()
        return inner(self)

    type(batches).__next__ = following


def fail_in_loader(session, step):
    def fail():
        raise ValueError(f"token file went away at step {step}")

    before_batch(session, step, fail)


def send_signal(session, step):
    before_batch(session, step, lambda: os.kill(os.getpid(), signal.SIGUSR2))


def kill(session, step):
    before_batch(session, step, lambda: os.kill(os.getpid(), signal.SIGKILL))


def fail_in_forward(session, step):
    """In the middle of the collectives of a step: the last layer fails, its peer is inside a gather."""
    layer = list(session.built.stages[-1].layers.values())[-1]

    def hook(module, args):
        if session.progress.step + 1 == step:
            raise ValueError(f"layer broke at step {step}")

    layer.register_forward_pre_hook(hook)


def fail_in_save(session, step):
    """A programmer's mistake, not the disk: the rank ends with it."""
    inner = session.saver.begin

    def begin(header, source, **where):
        if header.step == step:
            raise ValueError(f"writer died at step {step}")
        return inner(header, source, **where)

    session.saver.begin = begin


def main():
    start_world = program.start_world

    def start(*args):
        world = start_world(*args)
        import slurmtrain.train.session as module

        inner = module.open_session

        def open_session(*args, **more):
            session = inner(*args, **more)
            disturb(session)
            return session

        module.open_session = open_session
        return world

    program.start_world = start
    return program.main(sys.argv)


if __name__ == "__main__":
    sys.exit(main())
