"""Which digit is on a photograph? A small residual network, judged on each digit as well."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from daybreak import (
    Accuracy,
    Batch,
    Bytes,
    ClassLogLoss,
    ImageModel,
    Int,
    Label,
    Past,
    State,
    Table,
    TableWorkload,
    Time,
    pixels,
)

if TYPE_CHECKING:
    import ibis.expr.types as ir

SIZE = 28  # pixels


class Images(TableWorkload):
    """The chance of each digit.

    Args:
        width: channels of the first stage.
        num_stages: stages of the network, each of half the resolution and twice the channels.
    """

    table = Table(
        time="time",
        columns={"image": Bytes(), "time": Time(), "digit": Int(min=0, max=9)},
        label=Label("digit"),
    )
    metrics = (ClassLogLoss(), Accuracy())

    def __init__(self, *, width: int = 16, num_stages: int = 3) -> None:
        self.width, self.num_stages = width, num_stages

    def variants(self) -> dict[str, "Images"]:
        """Returns cheaper networks, which `search` may try beside this one."""
        offered = {}
        if self.width > 1:
            offered["simpler model"] = Images(width=self.width // 2, num_stages=self.num_stages)
        if self.num_stages > 1:
            offered["fewer layers"] = Images(width=self.width, num_stages=self.num_stages - 1)
        return offered

    def fit(self, rows: "ir.Table") -> State:
        """Returns nothing: pixels need no vocabulary."""
        return {}

    def features(self, rows: pa.Table, state: State, past: Past) -> Mapping[str, NDArray[Any]]:
        """Returns `pixels`, uint8 [b, 1, SIZE, SIZE]."""
        return {"pixels": pixels(rows["image"], size=SIZE, color=False)}

    def model(self, state: State) -> nn.Module:
        """Returns the network."""
        return ImageModel(num_outputs=10, channels=1, width=self.width, num_stages=self.num_stages)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Returns the cross entropy of each image."""
        return cross_entropy(model(batch["pixels"]), batch["digit"], reduction="none")

    def predict(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Returns the chance of each digit, shape [b, 10]."""
        return {"prediction": model(batch["pixels"]).softmax(dim=1)}

    def slices(self, batch: Batch) -> dict[str, Tensor]:
        """Returns which images are of each digit."""
        return {f"digit {digit}": batch["digit"] == digit for digit in range(10)}
