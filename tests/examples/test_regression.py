import json
from pathlib import Path

import torch

from daybreak.examples.shop.regression import Regression
from tests.examples.arrays import make_shop, write


def test_regression_learns_the_value_of_a_basket(tmp_path: Path) -> None:
    folder = write(make_shop(num_lines=1500), tmp_path)
    workload = Regression()
    torch.manual_seed(0)
    samples, model = workload.dataset(folder, "train"), workload.model()
    assert len(samples) == json.loads((folder / "meta.json").read_text())["num_samples_train"]
    batch = samples[:]
    before = workload.loss(model, batch).mean()
    optimizer = workload.optimizer(model.parameters())
    for group in optimizer.param_groups:
        group["lr"] = 1e-2
    for _ in range(100):
        optimizer.zero_grad()
        workload.loss(model, batch).mean().backward()
        optimizer.step()
    assert workload.loss(model, batch).mean() < before / 2
    test = workload.dataset(folder, "test")[:]
    assert workload.score(model, test).shape == (len(test[0]),)
