"""TensorBoard sink: the metrics of metrics.jsonl as scalars, under `<run folder>/tensorboard`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hamr.telemetry.sinks import FiguresOnly, finite_metrics


class TensorboardSink(FiguresOnly):
    """TensorBoard sink. A resumed run writes to the same folder; TensorBoard joins the parts by step."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(log_dir=str(folder / "tensorboard"))

    def metrics(self, step: int, stage: str, values: Mapping[str, float]) -> None:
        for name, value in finite_metrics(stage, values).items():
            self._writer.add_scalar(name, value, global_step=step)
        self._writer.flush()

    def close(self, *, failed: bool = False) -> None:
        self._writer.close()
