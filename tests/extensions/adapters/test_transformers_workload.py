"""A model of transformers is trained as a plain loop trains it, by its own loss or one of each sample."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from daybreak.contract.errors import ParamsError
from daybreak.contract.table import Int, Label, Table, Time
from daybreak.extensions.adapters.transformers_workload import TransformersWorkload
from daybreak.extensions.trial.trial_updates import TrialModel, try_updates
from daybreak.training import sample_order
from daybreak.workloads.metrics import LogLoss
from tests.extensions.adapters.samples import (
    NUM_SAMPLES,
    NUM_UPDATES,
    RATE,
    SEED,
    SIZE,
    Deliveries,
    trained,
)

transformers = pytest.importorskip(
    "transformers", reason="no transformers here; pip install 'daybreak[transformers]'"
)

pytestmark = pytest.mark.slow


class Late(TransformersWorkload):
    """Is a delivery late?"""

    table = Table(time="time", columns={"time": Time(), "late": Int(min=0, max=1)}, label=Label("late"))
    metrics = (LogLoss(),)

    def model(self, state: Any = None) -> nn.Module:
        made: nn.Module = transformers.BertForSequenceClassification(self.config(transformers.BertConfig))
        return made

    def config(self, kind: Any, **others: Any) -> Any:
        sizes = {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
        return kind(**sizes, num_attention_heads=2, max_position_embeddings=8, **others)

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=RATE, momentum=0.9)

    def schedule(self, done: float) -> float:
        return 1.0


class Certain(Late):
    """Without dropout, which passes of another size draw otherwise."""

    def config(self, kind: Any, **others: Any) -> Any:
        return super().config(kind, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **others)


def by_hand(workload: Any) -> dict[str, Tensor]:
    """Returns the weights after the same batches in a plain loop."""
    torch.manual_seed(SEED)
    model, data = workload.model(), Deliveries()
    model.train()
    optimizer = workload.optimizer(model.parameters())
    for start in range(0, NUM_UPDATES * SIZE, SIZE):
        samples = sample_order.indices(seed=SEED, num_samples=NUM_SAMPLES, start=start, stop=start + SIZE)
        batch = data.__getitems__(samples)
        optimizer.zero_grad()
        seen = batch["attention_mask"].long()
        model(input_ids=batch["input_ids"].long(), attention_mask=seen, labels=batch["late"]).loss.backward()
        optimizer.step()
    return dict(model.state_dict())


def tried(workload: type) -> TrialModel:
    """Returns a trial, as `daybreak try` takes it."""
    batch = Deliveries().__getitems__(range(NUM_SAMPLES))
    return try_updates(workload, {}, batch, size=NUM_SAMPLES, seed=SEED, rate=RATE)


def test_weights_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    torch.testing.assert_close(trained(Certain, tmp_path), by_hand(Certain()), rtol=1e-5, atol=1e-6)


def test_a_run_that_is_killed_ends_with_the_same_weights(tmp_path: Path) -> None:
    alone = trained(Late, tmp_path / "alone")
    killed = trained(Late, tmp_path / "killed", stops=(3, 8))
    assert all(torch.equal(killed[name], weight) for name, weight in alone.items())


def test_try_has_no_objection_to_a_model_with_dropout() -> None:
    assert tried(Late).notes == []


def test_a_collator_gets_samples_and_makes_what_the_model_takes() -> None:
    def shorter(samples: Any) -> Any:
        assert samples[0].keys() == {"input_ids", "attention_mask", "labels"}
        return {
            name: torch.stack([each[name][:4] if each[name].ndim else each[name] for each in samples])
            for name in samples[0]
        }

    workload = type("Shorter", (Late,), {"collator": staticmethod(shorter)})()
    inputs = workload.inputs(workload.model(), Deliveries().__getitems__(range(SIZE)))
    assert inputs["input_ids"].shape == (SIZE, 4)
    assert inputs["labels"].tolist() == Deliveries().late[:SIZE].tolist()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_what_a_collator_makes_is_on_the_device_of_its_batch() -> None:
    workload = type("Collated", (Late,), {"collator": staticmethod(torch.utils.data.default_collate)})()
    batch = {name: each.cuda() for name, each in Deliveries().__getitems__(range(SIZE)).items()}
    model = workload.model().cuda()
    assert workload.loss(model, batch, None).is_cuda


def test_predictions_follow_from_the_logits() -> None:
    workload, batch = Late(), Deliveries().__getitems__(range(SIZE))
    del batch["late"]
    for num_labels, shape in ((1, (SIZE,)), (2, (SIZE,)), (3, (SIZE, 3))):
        config = workload.config(transformers.BertConfig, num_labels=num_labels)
        model = transformers.BertForSequenceClassification(config).eval()
        predicted = workload.predict(model, batch)["prediction"]
        assert predicted.shape == shape
        if num_labels == 3:
            torch.testing.assert_close(predicted.sum(1), torch.ones(SIZE))


class Language(Certain):
    """A language model, whose loss is a mean over tokens."""

    def model(self, state: Any = None) -> nn.Module:
        made: nn.Module = transformers.BertLMHeadModel(self.config(transformers.BertConfig, is_decoder=True))
        return made

    def inputs(self, model: nn.Module, batch: Any) -> Any:
        inputs = super().inputs(model, batch)
        is_text = torch.arange(6) <= batch["late"][:, None] * 4 + 1  # late ones have longer texts
        return inputs | {"labels": inputs["input_ids"].masked_fill(~is_text, -100)}


class BySample(Language):
    """The same with a loss of each sample."""

    loss_is_mean = False

    def loss(self, model: Any, batch: Any, progress: Any) -> Tensor:
        inputs = self.inputs(model, batch)
        logits = model(input_ids=inputs["input_ids"]).logits[:, :-1].transpose(1, 2)
        losses = cross_entropy(logits, inputs["labels"][:, 1:], reduction="none")
        return losses.sum(dim=1) / (inputs["labels"][:, 1:] >= 0).sum(dim=1)


def test_a_mean_over_tokens_is_refused_and_a_loss_of_each_sample_takes_its_place() -> None:
    with pytest.raises(ParamsError, match=r"Language\.loss of a pass is no mean over its samples"):
        tried(Language)
    assert tried(BySample).notes == []
    assert tried(type("Whole", (Language,), {"whole_batch": True})).notes == []


def test_a_model_without_a_loss_and_features_that_it_does_not_take_are_named() -> None:
    class Bare(Late):
        def model(self, state: Any = None) -> nn.Module:
            made: nn.Module = transformers.BertModel(self.config(transformers.BertConfig))
            return made

        def inputs(self, model: nn.Module, batch: Any) -> Any:
            return {"input_ids": super().inputs(model, batch)["input_ids"]}

    with pytest.raises(ParamsError, match="BertModel returns no loss; take a class that has one"):
        tried(Bare)
    with pytest.raises(ParamsError, match=r"Late\.features returns x, and BertForSeq\w+ takes input_ids"):
        Late().inputs(Late().model(), {"x": torch.zeros(2)})
