"""Training goes without torch's compiler, and an optimizer does the same as with it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.training.nights import ROOT

pytestmark = pytest.mark.slow
TRAIN = """
import json, sys
from pathlib import Path
from tests.training.steps import steps
made = steps(Path(sys.argv[1]))
made.optimizer.load_state_dict(made.optimizer.state_dict())
made.close()
print(json.dumps(sorted(sys.modules)))
"""
UPDATE = """
import json, sys
import torch
from daybreak.training import eager_optimizers
if sys.argv[1] == "eager":
    eager_optimizers.without_compiler()
ended = {}
for name in ("Adam", "AdamW", "SGD", "Adagrad", "RMSprop", "NAdam"):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
    optimizer = getattr(torch.optim, name)(model[:2].parameters(), lr=0.1)
    optimizer.add_param_group({"params": model[2].parameters(), "lr": 0.01})
    stepped = []
    optimizer.register_step_post_hook(lambda *_: stepped.append(torch.is_grad_enabled()))
    for number in range(4):
        optimizer.zero_grad()
        model(torch.full((3, 4), 1.0 + number)).square().sum().backward()
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
    weights = [weight.tolist() for weight in model.parameters()]
    ended[name] = [weights, stepped, [weight.requires_grad for weight in model.parameters()]]
print(json.dumps([ended, "torch._dynamo" in sys.modules]))
"""


def printed(code: str, *words: str) -> Any:
    call = [sys.executable, "-c", code, *words]
    return json.loads(subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


def test_a_process_that_trains_does_not_import_the_compiler(folder: Path) -> None:
    loaded = printed(TRAIN, str(folder))
    assert "torch.optim" in loaded
    assert not {"torch._dynamo", "torch._inductor", "sympy"} & set(loaded)


def test_optimizers_end_at_the_same_weights_as_torch_s_own() -> None:
    (eager, compiler), (own, own_compiler) = (printed(UPDATE, how) for how in ("eager", "own"))
    assert (compiler, own_compiler) == (False, True)
    assert eager == own
