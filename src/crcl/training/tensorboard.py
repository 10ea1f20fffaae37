"""TensorBoard events with the metrics of each epoch."""

from functools import partial
from pathlib import Path
from typing import Any

from crcl.errors import InputError
from crcl.progress import Clock, Progress


class TensorBoard(Progress):
    """Writes loss, dev rSum and mean belief of each epoch as TensorBoard events."""

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise InputError("the package tensorboard is missing", hint="pip install 'crcl[tensorboard]'") from error
        self.open = partial(SummaryWriter, str(folder))
        self.writer: SummaryWriter | None = None
        self.epochs = 0

    def note(self, message: str) -> None:
        """Ignore messages: TensorBoard gets scalars only."""

    def epoch_started(self, clock: Clock, steps: int) -> None:
        self.epochs = clock.total_epoch
        if self.writer is None:  # not earlier, because a new training refuses an existing run folder
            self.writer = self.open(purge_step=self.epochs)

    def epoch_done(self, record: dict[str, Any]) -> None:
        values = {"loss": record["loss"], "dev rSum": record["dev"]["rsum"], "mean belief": record["mean_belief"]}
        if self.writer is not None:
            for name, value in values.items():
                self.writer.add_scalar(name, value, self.epochs)
            self.writer.flush()

    def training_ended(self) -> None:
        if self.writer is not None:
            self.writer.close()
