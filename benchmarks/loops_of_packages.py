"""Loops of Lightning, transformers and peft: pip install 'daybreak[lightning,transformers,peft]'."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from lightning import LightningModule
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR
from transformers import BertConfig, BertForSequenceClassification

from benchmarks.loop import Batch, Keys, Loop, Samples, cosine, linear, warm
from benchmarks.loops_over_tables import rows
from benchmarks.loops_over_text import LENGTH, WIDTH, WORDS, LanguageModel, Transformer, sentences
from daybreak import Int, Label, LightningWorkload, LogLoss, Table, Time, TransformersWorkload


class YesModule(LightningModule):
    """A net as it was written for Lightning's Trainer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        numbers, is_yes = batch
        return binary_cross_entropy_with_logits(self.layers(numbers)[:, 0], is_yes)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        total = self.trainer.estimated_stepping_batches
        scheduler = OneCycleLR(optimizer, max_lr=0.01, total_steps=total, cycle_momentum=False)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class OfLightning(LightningWorkload):
    """A LightningModule with OneCycleLR, and clipping by an argument of its Trainer."""

    rate, workers, pass_size, tuning = Loop.rate, Loop.workers, Loop.pass_size, Loop.tuning
    train: ClassVar[Keys] = {"schedule": "own"}
    __init__, dataset = Loop.__init__, Loop.dataset
    metrics = (LogLoss(),)
    trainer: ClassVar[Keys] = {"gradient_clip_val": 0.2}

    def samples(self, draw: np.random.Generator) -> Samples:
        return Samples(**rows(draw))

    def model(self, state: Any) -> nn.Module:
        return YesModule()

    def inputs(self, batch: Batch) -> Any:
        return batch["numbers"], batch["is_yes"]

    def scheduler(self, optimizer: Optimizer, *, done: Sequence[float]) -> LRScheduler:
        return OneCycleLR(optimizer, max_lr=0.01, total_steps=len(done), cycle_momentum=False)


class OfTransformers(TransformersWorkload):
    """A model of transformers that returns its mean loss, with a cosine and a clipped gradient."""

    rate, workers, pass_size, tuning = Loop.rate, Loop.workers, Loop.pass_size, Loop.tuning
    train: ClassVar[Keys] = {"schedule": "cosine", "warmup": 0.1, "clip_norm": 1.0}
    factor = warm(0.1, cosine)
    __init__, dataset = Loop.__init__, Loop.dataset
    optimizer, scheduler = Loop.optimizer, Loop.scheduler
    table = Table(time="time", columns={"time": Time(), "labels": Int()}, label=Label("labels"))
    metrics = (LogLoss(),)

    def samples(self, draw: np.random.Generator) -> Samples:
        words = sentences(draw)
        return Samples(input_ids=words, labels=(words[:, 0] > WORDS // 2).astype(np.int64))

    def model(self, state: Any) -> nn.Module:
        config = BertConfig(
            vocab_size=WORDS,
            hidden_size=WIDTH,
            intermediate_size=2 * WIDTH,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=LENGTH,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        return BertForSequenceClassification(config)


class LowRanks(LanguageModel):
    """As LoRA by peft: a few weights beside matrices that stay as they are."""

    train: ClassVar[Keys] = {"schedule": "linear", "warmup": 0.1, "clip_norm": 1.0}
    factor = warm(0.1, linear)

    def model(self) -> Any:
        return get_peft_model(Transformer(is_causal=True), LoraConfig(r=2, target_modules=["mixed", "net.0"]))

    def optimizer(self, model: nn.Module) -> Optimizer:
        trained = [each for each in model.parameters() if each.requires_grad]
        return torch.optim.AdamW(trained, lr=self.rate)
