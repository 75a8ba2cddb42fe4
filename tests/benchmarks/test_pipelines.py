"""Each pipeline of the benchmark is a workload that a process can be sent, with a loss for each sample."""

import pickle

import pytest
import torch

from benchmarks.pipelines import PIPELINES, Piped
from daybreak.training.tuning import read


@pytest.mark.slow
@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_trains_on_what_it_wrote(name, tmp_path):
    workload = pickle.loads(pickle.dumps(Piped(name)))
    workload.pipeline.write(tmp_path)
    torch.manual_seed(0)
    loss = workload.loss(workload.model(), read(workload.dataset(tmp_path, "train"), [0, 2, 1]))
    assert loss.shape == (3,)
    assert torch.isfinite(loss).all()
