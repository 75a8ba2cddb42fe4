"""Nonsense: deterministic, grammatical, and a model of it that sees only what comes before."""

from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch

from daybreak.contract.errors import DataError
from daybreak.data.features import past_of
from daybreak.examples.language.language import LENGTH, Language
from daybreak.examples.language.nonsense import Nonsense
from tests.examples.daily import learned, made, one_by_one, reader

TODAY = date(2025, 7, 1)
DAY = TODAY - timedelta(days=1)


def nonsense(**arguments: object) -> Nonsense:
    return Nonsense(**({"seed": 7, "today": TODAY, "rows_per_day": 100} | arguments))  # type: ignore[arg-type]


def test_lines_are_whole_sentences_of_documents_and_become_bytes(tmp_path: Path) -> None:
    rows, _, samples = made(Language(), nonsense(), DAY, tmp_path)
    assert rows.schema.equals(Language.table.schema())
    texts = rows["text"].to_pylist()
    assert all(text[-1] in ".?" and "{" not in text for text in texts)
    assert 1 < len(texts) / len(set(rows["document"].to_pylist())) < 8
    assert samples["tokens"].shape == (len(texts), LENGTH)
    assert bytes(samples["tokens"][0]).rstrip(b"\0").decode() == texts[0][:LENGTH]


def test_features_of_one_line_are_those_it_has_among_others(tmp_path: Path) -> None:
    workload, source = Language(), nonsense()
    rows, state, _ = made(workload, source, DAY, tmp_path)
    past = past_of(workload, DAY, source.days(), read=reader(tmp_path))
    assert one_by_one(workload, rows, state, past, number=20)


def test_a_guess_depends_on_no_later_byte() -> None:
    torch.manual_seed(0)
    model = Language().model({}).eval()
    tokens = torch.randint(1, 256, (2, LENGTH))
    other = tokens.clone()
    other[:, 40:] = 7
    one, two = model(tokens), model(other)
    assert torch.allclose(one[:, :41], two[:, :41], atol=1e-5)
    assert not torch.allclose(one[:, 41:], two[:, 41:], atol=1e-3)


def test_the_log_loss_of_a_line_is_of_its_bytes_and_its_end(tmp_path: Path) -> None:
    workload = Language()
    _, state, samples = made(workload, nonsense(), DAY, tmp_path)
    torch.manual_seed(0)
    model = workload.model(state)
    batch = {"tokens": torch.from_numpy(samples["tokens"])}
    predicted = workload.predict(model, batch)["log_loss"]
    assert predicted[:, 1].tolist() == np.minimum((samples["tokens"] > 0).sum(axis=1) + 1, LENGTH).tolist()
    assert torch.allclose(workload.loss(model, batch), predicted[:, 0] / predicted[:, 1])
    perplexity = workload.metrics[0].values(predicted.detach().numpy(), np.zeros(len(predicted))).mean()
    assert 150 < perplexity < 500  # of 256 bytes, before it has learned


@pytest.mark.slow
def test_a_few_updates_lower_the_loss(tmp_path: Path) -> None:
    workload = Language()
    _, state, samples = made(workload, nonsense(rows_per_day=30), DAY, tmp_path)
    before, after = learned(workload, state, samples, updates=12)
    assert after < 0.7 * before


def test_a_day_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Nonsense has no rows of 2025-07-01; ask for a day of"):
        nonsense().fetch(TODAY, tmp_path)
