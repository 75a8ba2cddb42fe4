"""The recipes of docs/own-data.md do what they say, and are the same after a kill."""

import math
import re
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, softplus

from daybreak import TableWorkload, TemperatureScaling
from daybreak.contract.record_parts import Tuning
from daybreak.contract.workload import is_encoded, make_model
from daybreak.extensions.trial.trial_updates import try_updates
from daybreak.training import checkpoint
from daybreak.training.checkpoint import write_tensors
from daybreak.training.engine import TorchEngine
from daybreak.training.trainer import Trainer
from tests.fakes import AtOnce
from tests.training.nights import ROOT
from tests.training.recipes import recipe

NUM_SAMPLES, SIZE = 48, 8
SECTION = "### Training as you would write it"


def recipes() -> dict[str, str]:
    """Returns the code of each recipe, by the words in bold before it."""
    page = (ROOT / "docs/own-data.md").read_text()
    section = page[page.index(SECTION) + len(SECTION) :]
    section = section[: section.index("\n### ")]
    found = re.findall(r"\*\*([^*]+)\*\*(?:(?!\*\*).)*?```python\n(.*?)```", section, re.DOTALL)
    return {name: textwrap.dedent(code) for name, code in found}


class Net(nn.Module):
    """The model of an account's payments."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(2, 8), nn.LayerNorm(8), nn.Tanh())
        self.head = nn.Linear(8, 2)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        answer: Tensor = self.head(self.encoder(batch["x"]))
        return answer


class Payments:
    """The class that recipes add to."""

    def __init__(self) -> None:
        self.memory, self.num_hard = torch.zeros(2), 0

    def model(self, state: Any) -> nn.Module:
        return Net()

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters)

    def loss(self, model: Any, batch: Any) -> Tensor:
        if is_encoded(self):
            return TableWorkload.loss(self, model, batch)  # type: ignore[arg-type]
        logits = model(batch)[:, 0]
        return binary_cross_entropy_with_logits(logits, batch["is_fraud"].float(), reduction="none")

    def dataset(self, folder: Path, split: str) -> Any:
        return Rows()


class Rows:
    """Payments of which some are fraud."""

    def __init__(self) -> None:
        drawn = np.random.default_rng(0)
        self.x = torch.tensor(drawn.normal(size=(NUM_SAMPLES, 2)), dtype=torch.float32)
        self.is_fraud = (self.x[:, 0] > 0).long()
        self.refunded = torch.where(self.x[:, 1] > 0, self.is_fraud.float(), torch.nan)  # or not yet known

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitems__(self, samples: Any) -> dict[str, Tensor]:
        rows = torch.as_tensor(np.asarray(samples))
        return {"x": self.x[rows], "is_fraud": self.is_fraud[rows], "refunded": self.refunded[rows]}


def made_of(code: str, folder: Path) -> Any:
    """Returns the class with the lines of a recipe in it, whose module is in a folder with weights."""
    other = {name: tensor + 1 for name, tensor in Net().encoder.state_dict().items()}
    write_tensors(folder / "encoder.safetensors", other)
    names = {"torch": torch, "nn": nn, "Path": Path, "load_file": load_file, "softplus": softplus}
    names |= {"binary_cross_entropy_with_logits": binary_cross_entropy_with_logits}
    if "peft" in code:
        peft = pytest.importorskip("peft", reason="no LoRA here; pip install 'daybreak[peft]'")
        names |= {"LoraConfig": peft.LoraConfig, "get_peft_model": peft.get_peft_model}
    names |= {"Network": Net, "TableWorkload": Payments, "__file__": str(folder / "payments.py")}
    if not code.startswith("class "):
        code = "class Payments(TableWorkload):\n" + textwrap.indent(code, "    ")
    exec(code, names)
    return names["Payments"]


def trained(workload: Any, folder: Path, *, until: float = math.inf) -> dict[str, Tensor]:
    """Returns the weights of a run from its newest checkpoint to an update, or to its end."""
    made = recipe(num_samples=3 * NUM_SAMPLES, batch_size=SIZE, peak=0.05)
    engine = TorchEngine(workload, Rows(), seed=7, micro_batch_size=SIZE, tuning=Tuning())  # type: ignore[arg-type]
    trainer = Trainer(
        engine,
        made,
        folder=folder,
        epoch_samples=NUM_SAMPLES,
        told_to_stop=lambda: trainer.num_updates + 1 >= until,
        report=lambda progress: None,
        executor=AtOnce(),
    )
    if path := checkpoint.newest(folder, identity=made.identity):
        trainer.resume(path)
    trainer.run()
    return {name: weight.clone() for name, weight in engine.weights().items()}


@pytest.mark.parametrize("name", recipes())
def test_a_recipe_trains_and_is_the_same_after_a_kill(name, tmp_path):
    workload = made_of(recipes()[name], tmp_path)
    torch.manual_seed(7)
    before = make_model(workload(), {}).state_dict()
    alone = trained(workload(), tmp_path / "alone")
    for until in (4, 11, math.inf):
        resumed = trained(workload(), tmp_path / "stopped", until=until)
    assert all(torch.equal(resumed[name], weight) for name, weight in alone.items())
    assert any(not torch.equal(alone[name], weight) for name, weight in before.items())


@pytest.mark.parametrize("name", recipes())
def test_try_has_no_objection_to_a_recipe(name, tmp_path):
    batch = Rows().__getitems__(range(SIZE))
    assert (
        try_updates(made_of(recipes()[name], tmp_path), {}, batch, size=SIZE, seed=0, rate=0.01).notes == []
    )


def block(page: str, words: str) -> str:
    """Returns the code of a page's block that has these words."""
    text = (ROOT / "docs" / page).read_text()
    (code,) = [each for each in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if words in each]
    return textwrap.dedent(code)


def test_the_schedule_of_the_page_falls_in_steps():
    names: dict[str, Any] = {}
    exec(block("train.md", "def schedule"), names)
    factors = [names["schedule"](None, done) for done in (0.0, 0.3, 0.34, 0.67, 0.99)]
    assert factors == pytest.approx([1, 1, 0.1, 0.01, 0.01])


def test_the_calibrated_class_of_the_page_calibrates():
    names: dict[str, Any] = {"TableWorkload": TableWorkload, "TemperatureScaling": TemperatureScaling}
    exec(block("own-data.md", "calibrator = "), names)
    assert names["Payments"].calibrator.prediction == "prediction"


def test_the_loss_of_a_language_model_on_the_page_is_of_each_text_alone():
    names: dict[str, Any] = {"cross_entropy": cross_entropy}
    exec(block("models-you-have.md", "logits.transpose"), names)
    torch.manual_seed(0)
    words = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))

    def model(*, input_ids: Tensor, attention_mask: Tensor) -> Any:
        return SimpleNamespace(logits=words(input_ids))

    tokens = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0]], dtype=torch.int16)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]], dtype=torch.int16)
    losses = names["loss"](None, model, {"input_ids": tokens, "attention_mask": mask}, None)
    by_hand = [cross_entropy(words(text[:-1].long()), text[1:].long()) for text in (tokens[0], tokens[1, :2])]
    torch.testing.assert_close(losses, torch.stack(by_hand))
