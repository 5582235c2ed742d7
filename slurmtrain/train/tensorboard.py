"""Event files for TensorBoard, where its package can be imported (the extra `tensorboard`)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

_FLUSH_S = 10


class TensorBoard:
    """Scalars of one attempt. `first`: its first step: what an earlier attempt wrote from there on is not shown."""

    def __init__(self, folder: Path, first: int) -> None:
        # The package alone: torch's own writer loads the whole of torch.utils.tensorboard for the same file.
        from tensorboard.compat.proto import event_pb2, summary_pb2  # noqa: PLC0415 an optional extra
        from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: PLC0415

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._file = EventFileWriter(str(folder), flush_secs=_FLUSH_S)
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._file.add_event(event_pb2.Event(wall_time=time.time(), step=first, session_log=start))

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in numbers.items()]
        self._file.add_event(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))

    def close(self) -> None:
        self._file.close()
