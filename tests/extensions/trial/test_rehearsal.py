"""`daybreak try`: a line for each check where the code is sound, one sentence where it is not."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from pathlib import Path

import pytest

from daybreak.contract.errors import DataError, ParamsError
from daybreak.extensions.trial.rehearsal import CODE, rehearse
from daybreak.extensions.trial.row_checks import RowChecks

ROOT = Path(__file__).parents[3]
FRAUD = ROOT / "pipeline/daybreak/examples/fraud"
CHECKS = [
    "source",
    "rules",
    "table",
    "drift",
    "held",
    "fit",
    "features",
    "dataset",
    "model",
    "loss",
    "update",
    "predict",
    "metrics",
    "weights",
    "version",
    "needs",
]

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with the example of payments."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "data").mkdir()
    for name in ("fraud.py", "payments.py", "data/expectations.yaml"):
        shutil.copy(FRAUD / name, folder / name)
    (folder / "params.yaml").write_text(
        'source: {use: "payments:Payments", start: "2025-06-01", today: "2025-07-01", rows_per_day: 500}\n'
        "workload: fraud:Fraud\nbackend: daybreak:Local\n"
    )
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    return folder


@pytest.fixture
def in_process(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Takes the home through the checks in this process, which spares imports of torch."""

    def run(day: date | None = None) -> None:
        shutil.copytree(home, tmp_path / CODE)
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path / CODE)
        for name in ("fraud", "payments"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        RowChecks(home).run(day)

    return run


def edit(home: Path, old: str, new: str) -> None:
    text = (home / "fraud.py").read_text()
    assert old in text
    (home / "fraud.py").write_text(text.replace(old, new))


def test_sound_code_prints_a_line_for_each_check(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rehearse(home)
    lines = capfd.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*CHECKS, "ok"]
    assert "2025-06-16: " in lines[0]  # the newest with labels that are known
    assert "and 7 days before" in lines[2]
    assert "the same predictions" in lines[-4]
    assert "carries 1 file of its own, with the same features and predictions" in lines[-3]
    assert f", torch=={version('torch').partition('+')[0]}" in lines[-2]


def test_cards_are_tried_and_one_that_a_night_would_not_show_is_a_note(
    home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
    edit(
        home,
        "    def predict(",
        """    def cards(self, night):
        import os
        secrets = [name for name in os.environ if "PASSWORD" in name]
        yield "facts", {"samples": len(night.samples), "day": str(night.day), "secrets": 1 / (not secrets)}
        yield "object", object()
        if night.model is not None:
            assert len(night.scores["challenger"]) == len(night.samples) > 100
            yield "scored", {"loss": night.losses[-1][1], "score": night.metrics["score"]}
            return
        yield "first score", night.scores["challenger"][0]

    def predict(""",
    )
    rehearse(home)
    printed = capfd.readouterr().out.splitlines()
    (line,) = (line for line in printed if line.startswith("cards"))
    assert re.match(r"cards +1 before the model is scored, 2 after it +\d", line)
    notes = [line.removeprefix("note").strip() for line in printed if "is not shown" in line]
    assert notes[0].startswith("before the model is scored, 'object' is not shown: ")
    assert re.fullmatch(
        r"before the model is scored, 'Cards' is not shown: cards of fraud:Fraud failed at line \d+ of "
        r"fraud.py: KeyError: 'challenger'",
        notes[1],
    )
    assert [note.startswith("after it, 'object' is not shown") for note in notes] == [False, False, True]


def test_rows_that_fail_a_rule_are_counted_and_left_out(
    home: Path, in_process: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    write_rules(
        home,
        """\
days:
  - {name: "many", type: expect_column_values_to_be_between, kwargs: {column: "num_rows", min_value: 1000}}
  - {name: "odd", type: expect_column_sum_to_be_between, kwargs: {column: "num_rows", min_value: 1}}
rows:
  - {name: "online", type: expect_column_values_to_be_in_set, kwargs: {column: "online", value_set: [true]}}
""",
    )
    in_process()
    _, rules, table, *_ = capfd.readouterr().out.splitlines()
    counts = re.search(
        r"rules +\d+ rules, (\d+) of (\d+) rows fail: 'online' (\d+); the day fails 'many'; "
        r"only a night tries 'odd'",
        rules,
    )
    assert counts, rules
    assert 0 < int(counts[1]) == int(counts[3]) < int(counts[2])
    assert table.split()[1:3] == [str(int(counts[2]) - int(counts[1])), "rows"]


def test_a_column_is_read_from_the_rows_whatever_the_folders_are_called(
    home: Path, in_process: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    """Partitions lie in folders `day=...`, which are not the column `day` of a team."""
    for file in ("fraud.py", "payments.py"):
        (home / file).write_text((home / file).read_text().replace('"country"', '"day"'))
    in_process()
    (fit,) = (line for line in capfd.readouterr().out.splitlines() if line.startswith("fit"))
    countries = re.search(r"values_day <U2 \[(\d+)\]", fit)
    assert countries and int(countries[1]) > 1


def test_a_prediction_that_is_named_as_a_column_beside_it_is_found_at_once(
    home: Path, in_process: Callable[..., None]
) -> None:
    edit(home, 'return {"prediction": model', 'return {"account": model(batch), "prediction": model')
    with pytest.raises(ParamsError, match="returns 'account', which is a column of the rows"):
        in_process()


def write_rules(home: Path, text: str) -> None:
    (home / "data/expectations.yaml").write_text(text)


RULES = {
    "an unknown type": ("{name: a, type: expect_nothing, kwargs: {}}", "rule 'a' is of type expect_nothing"),
    "an unknown column": (
        "{name: a, type: expect_column_values_to_be_between, kwargs: {column: b, min_value: 0}}",
        "rule 'a' cannot be judged: .*\"b\".* fix it in the suite",
    ),
    "a function that fails": (
        "{name: a, python: 'fraud:history'}",
        "rule 'a': fraud:history fails: TypeError",
    ),
}


@pytest.mark.parametrize("fault", RULES)
def test_a_rule_that_cannot_be_computed_is_named(
    home: Path, in_process: Callable[..., None], fault: str
) -> None:
    rule, sentence = RULES[fault]
    write_rules(home, f"rows:\n  - {rule}\n")
    with pytest.raises(ParamsError, match=sentence):
        in_process()


def test_a_suite_that_git_ignores_is_missed(home: Path) -> None:
    (home / ".gitignore").write_text("data/\n")
    with pytest.raises(ParamsError, match=r"the suite data/expectations\.yaml is missing; .*git must not"):
        rehearse(home)


# A loss of Fraud by how each sample ranks among those of its batch.
IN_BATCH = """\
    def loss(self, model, batch):
        out = model(batch)
        if True:
            return out.logsumexp(0) - out
        return out.square()

"""

FAULTS = {
    "a feature of the wrong length": (
        '"history": history(rows, past.rows(self.looks_back))}',
        '"history": history(rows, past.rows(self.looks_back))[1:]}',
        r"Fraud\.features: 'history' has shape \[\d+, 3\]; return \[\d+, \.\.\.\], one a row",
    ),
    "a loss that is a scalar": (
        'reduction="none")',
        'reduction="mean")',
        r"Fraud\.loss returns shape \[\] for 256 samples; return one a sample, shape \[256\]",
    ),
    "a loss that is not finite": (
        "return binary_cross_entropy_with_logits(",
        "return torch.nan * binary_cross_entropy_with_logits(",
        r"Fraud\.loss is nan for 256 of 256 samples; look for",
    ),
    "a prediction of the wrong length": (
        "model(batch).sigmoid()}",
        "model(batch)[1:].sigmoid()}",
        r"Fraud\.predict: 'prediction' has shape \[255\] for 256 samples; return one prediction a sample",
    ),
    "a prediction that needs the label": (
        "model(batch).sigmoid()}",
        'model(batch).sigmoid() * batch["is_fraud"]}',
        r"Fraud\.predict needs the label 'is_fraud', which nobody knows by then; predict from features alone",
    ),
    "a prediction that needs the unit": (
        "model(batch).sigmoid()}",
        'model(batch).sigmoid() * (batch["(unit)"] != 0)}',
        r"Fraud\.predict reads the number of the unit \(batch\['\(unit\)'\]\), which rows that are served",
    ),
    "a model without parameters": (
        "return Network(state)",
        "return nn.Identity()",
        r"Fraud\.model returns a model without parameters; return one that can learn",
    ),
    "code that fails, with its line": (
        "return Network(state)",
        "return Network(state['nothing'])",
        r"Fraud\.model fails \(fraud\.py, line \d+\): KeyError: 'nothing'; fix it",
    ),
    "a state that is not kept": (
        "return out[:, 0]",
        "return out[:, 0] + (not self.training) * self.__dict__.setdefault('shift', float(torch.rand(1)))",
        r"Fraud\.predict gives another 'prediction' once the weights are saved and loaded; keep what",
    ),
    "a counter in a plain attribute": (
        "return out[:, 0]",
        "self.step = getattr(self, 'step', 0) + self.training\n"
        "        return out[:, 0] / (1 + self.step / 100)",
        r"Fraud\.model keeps state that no checkpoint holds: the loss of an update is 0\.\d+, and 0\.\d+ "
        r"after a restart, which loses Network\.step \(2\); keep it in parameters or buffers",
    ),
    "random numbers that no seed repeats": (
        "return out[:, 0]",
        "return out[:, 0] * (1 + __import__('random').SystemRandom().random())",
        r"Fraud\.loss of two runs of one seed differs: .*; keep what it counts in buffers of the model",
    ),
    "a loss that other samples decide": (
        "    def predict(self",
        IN_BATCH + "    def predict(self",
        r"Fraud\.loss of the first 2 samples is \S+ alone, and \S+ among 256: it depends on the other",
    ),
    "a loss that other samples decide in training": (
        "    def predict(self",
        IN_BATCH.replace("if True", "if model.training") + "    def predict(self",
        r"Fraud\.loss of the first 2 samples is \S+ alone, and \S+ among 256: it depends on the other",
    ),
    "a prediction that other rows decide": (
        "model(batch).sigmoid()}",
        "model(batch).softmax(0)}",
        r"Fraud\.predict gives another 'prediction' for 128 samples alone than among 256; predict a sample",
    ),
    "a prediction that is not a number": (
        "model(batch).sigmoid()}",
        "(model(batch) - 9).log()}",
        r"Fraud\.predict gives 'prediction' that is nan for 256 of 256 values; look for a log",
    ),
    "a prediction that is infinite": (
        "model(batch).sigmoid()}",
        "model(batch).sigmoid(), 'risk': (model(batch) * 0).log()}",
        r"Fraud\.predict gives 'risk' that is -inf for 256 of 256 values; look for a log",
    ),
    "a logit where a metric is of chances": (
        "model(batch).sigmoid()}",
        "model(batch) - 9}",
        r"Fraud\.predict gives 'prediction' from -\S+ to -\S+, and the metric \S+ loss is of chances from 0 ",
    ),
    "a prediction that is drawn": (
        "model(batch).sigmoid()}",
        "model.train()(batch).sigmoid()}",
        r"Fraud\.predict gives another 'prediction' when it is called again; draw nothing at random, .* eval",
    ),
    "features by what was seen before": (
        "past.rows(self.looks_back))}",
        'past.rows(self.looks_back)), "seen": np.array([vars(history).setdefault(one, len(vars(history))) '
        'for one in rows["account"].to_pylist()])}',
        r"Fraud\.features gives another seen of the same rows in another process, which has seen other rows "
        r"before and has not run fit; return from fit what it learns, keep nothing between calls",
    ),
    "a scheduler of the rate": (
        "    def predict(self",
        "    def optimizer(self, parameters):\n"
        "        made = torch.optim.SGD(parameters, lr=0.1)\n"
        "        torch.optim.lr_scheduler.StepLR(made, 30)\n"
        "        return made\n\n    def predict(self",
        r"Fraud\.optimizer has a scheduler, whose rate training overwrites at each update; leave it "
        r"out, and set train\.rate \(0\.002\), train\.warmup and train\.schedule, which may be a method",
    ),
    "a state that only this process has": (
        "    def predict(self",
        "    def fit(self, rows):\n        self.width = 1\n        return super().fit(rows)\n\n"
        "    def optimizer(self, parameters):\n        self.width\n"
        "        return super().optimizer(parameters)\n\n"
        "    def predict(self",
        r"Fraud\.loss fails .*: AttributeError: 'Fraud' object has no attribute 'width'; fix it",
    ),
    "a file that no version carries": (
        "import torch\n",
        "from pathlib import Path\nimport torch\n"
        "RISK = Path(__file__).with_name('notes' + '.txt').read_text()\n",
        r"Fraud does not run by the 1 file of its own that a version carries: FileNotFoundError: .*"
        r"notes\.txt.*; keep what it reads beside the class",
    ),
    "a class without a table": (
        "    table = Table(",
        "    rows = Table(",
        r"fraud:Fraud has no table; declare `table = Table\(\.\.\.\)` in the class",
    ),
    "a module that is not there": (
        "import torch\n",
        "import torch\nimport our_shared_code\n",
        r"fraud:Fraud needs the module our_shared_code, which a rented machine would not have; put it into",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_sentence_that_names_the_method(
    home: Path, in_process: Callable[..., None], fault: str
) -> None:
    old, new, sentence = FAULTS[fault]
    edit(home, old, new)
    (home / "notes.txt").write_text("of the team")
    with pytest.raises(ParamsError, match=sentence):
        in_process()


@pytest.mark.slow
def test_an_auxiliary_label_is_known_to_the_loss_and_not_to_predict(
    home: Path, in_process: Callable[..., None]
) -> None:
    label = 'label=Label("is_fraud", ripe_after=days(14)),'
    edit(home, label, f'{label} auxiliary=(Label("online"),),')
    edit(
        home,
        "binary_cross_entropy_with_logits(model",
        '(1 + batch["online"]) * binary_cross_entropy_with_logits(model',
    )
    edit(home, "model(batch).sigmoid()}", 'model(batch).sigmoid() * batch["online"]}')
    with pytest.raises(ParamsError, match=r"Fraud\.predict needs the label 'online', which nobody knows"):
        in_process()


@pytest.mark.slow
def test_an_auxiliary_label_that_is_not_known_of_the_day_is_noted(
    home: Path, in_process: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    label = 'label=Label("is_fraud", ripe_after=days(14)),'
    edit(home, label, f'{label} auxiliary=(Label("online", ripe_after=days(60)),),')
    in_process()
    assert "note      the auxiliary label online is not known of" in capfd.readouterr().out


def test_a_module_that_git_ignores_is_missed(home: Path) -> None:
    (home / ".gitignore").write_text("helper.py\n")
    (home / "helper.py").write_text("X = 1\n")
    edit(home, "import torch\n", "import helper\nimport torch\n")
    with pytest.raises(ParamsError, match=r"needs the module helper, .* where git must not ignore it"):
        rehearse(home)
    (home / ".gitignore").write_text("fraud.py\n")
    with pytest.raises(ParamsError, match="fraud:Fraud needs the module fraud, "):
        rehearse(home)


def test_what_is_read_elsewhere_and_a_rate_that_is_replaced_are_noted(
    home: Path, in_process: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    elsewhere = home / "notes.txt"
    elsewhere.write_text("of the team")
    library = home / ".venv/lib/site-packages/entry_points.txt"  # of an environment within the home
    library.parent.mkdir(parents=True)
    library.write_text("of a library")
    edit(
        home,
        "import torch\n",
        f"import os\nimport pathlib\nimport socket\nimport torch\nfrom datetime import date\n"
        f"RISK = pathlib.{elsewhere!r}.read_text()\npathlib.{library!r}.read_text()\n"
        f"HERE = os.environ.get('HOME')\nNOW = date.today()\n"
        f"os.environ['OF_FRAUD'] = '1'\nwith socket.socket(type=socket.SOCK_DGRAM) as out:\n"
        f"    out.connect(('127.0.0.1', 9))\n",
    )
    edit(
        home,
        "    def predict(self",
        "    def optimizer(self, parameters):\n        return torch.optim.SGD(parameters, lr=0.25)\n\n"
        "    def predict(self",
    )
    in_process()
    rate, read, connects, now, here = (
        line for line in capfd.readouterr().out.splitlines() if line.startswith("note")
    )
    assert "optimizer sets a rate of 0.25, and training takes train.rate: 0.002 in its place" in rate
    assert f"{elsewhere} is read, which is in no digest" in read
    assert "Fraud connects to 127.0.0.1:9, whose answers are in no digest" in connects
    assert "of fraud.py asks what time it is" in now
    assert "of fraud.py reads the environment" in here


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ("", "note      schedule is not called, as train.schedule is stable; set it to own"),
        (
            "train: {schedule: own, rate: 0.5}\n",
            "schedule  at the beginning, halfway and at the end: 0.5, 0.25",
        ),
    ],
)
def test_a_schedule_of_the_class_is_tried_where_params_ask_for_it(
    home: Path, in_process: Callable[..., None], capfd: pytest.CaptureFixture[str], train: str, said: str
) -> None:
    edit(
        home,
        "    def predict(self",
        "    def schedule(self, done):\n        return 1 - done\n\n    def predict(self",
    )
    params = home / "params.yaml"
    params.write_text(params.read_text() + train)
    in_process()
    assert said in capfd.readouterr().out


def test_optimizers_in_turns_and_float16_are_tried(
    home: Path, in_process: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    edit(
        home,
        "    def predict(self",
        """\
    def optimizer(self, model):
        first, *others = model.parameters()
        return {"first": torch.optim.SGD([first]), "others": torch.optim.AdamW(others)}

    def whole(self, model, batch):
        return binary_cross_entropy_with_logits(model(batch), batch["is_fraud"].float(), reduction="none")

    def loss(self, model, batch, progress):
        return {"first" if progress.update % 2 else "others": self.whole(model, batch)}

    def predict(self""",
    )
    params = home / "params.yaml"
    params.write_text(params.read_text() + "train: {precision: float16}\n")
    in_process()
    said = capfd.readouterr().out
    assert re.search(r"^float16 +mean loss 0\.\d+ ", said, re.MULTILINE)
    assert "the same when repeated, restarted and divided" in said


def test_a_key_that_does_not_go_with_a_class_is_refused_before_a_night(
    home: Path, in_process: Callable[..., None]
) -> None:
    edit(
        home,
        "    def predict(self",
        "    def trainable(self, model, progress):\n        pass\n\n    def predict(self",
    )
    params = home / "params.yaml"
    params.write_text(params.read_text() + "train: {sync: every_h_updates}\n")
    with pytest.raises(ParamsError, match=r"trainable, .* does not go with train\.sync: every_h_updates;"):
        in_process()


def test_a_loss_that_overflows_in_float16_is_named(home: Path, in_process: Callable[..., None]) -> None:
    edit(home, "with_logits(model(batch)", "with_logits(1e6 * model(batch)")
    params = home / "params.yaml"
    params.write_text(params.read_text() + "train: {precision: float16}\n")
    with pytest.raises(ParamsError, match=r"Fraud\.loss is not finite in float16, whose largest number is"):
        in_process()


NOT_SEEN = {
    "logits": (
        ("model(batch).sigmoid()}", 'model(batch)}\n\n    calibrator = TemperatureScaling("prediction")'),
        "prediction goes from -.*, and a calibrator is of chances",
    ),
    "score": (
        (  # which is called where the metric that decides is of a set
            "    metrics = (LogLoss(), AUC(), Calibration())\n",
            "    metrics = (AUC(), Calibration())\n\n"
            "    def score(self, model, batch):\n        return self.loss(model, batch).mean()\n\n",
        ),
        "score of Fraud has shape .. for 256 samples",
    ),
}


@pytest.mark.parametrize("fault", NOT_SEEN)
def test_what_only_a_validated_run_calls_is_tried(
    home: Path, in_process: Callable[..., None], fault: str
) -> None:
    (old, new), sentence = NOT_SEEN[fault]
    edit(home, old, new)
    edit(home, "from daybreak import (\n", "from daybreak import (\n    TemperatureScaling,\n")
    params = home / "params.yaml"
    params.write_text(params.read_text() + "train: {validation: 0.1}\n")
    with pytest.raises(ParamsError, match=sentence):
        in_process()


def test_a_score_of_bools_is_tried_as_training_takes_it(
    home: Path, in_process: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    score = "return (model(batch).sigmoid() > 0.5) == (batch['is_fraud'] > 0.5)"
    edit(
        home,
        "    metrics = (LogLoss(), AUC(), Calibration())\n",
        f"    metrics = (AUC(), Calibration())\n\n    def score(self, model, batch):\n        {score}\n\n",
    )
    params = home / "params.yaml"
    params.write_text(params.read_text() + "train: {validation: 0.1}\n")
    in_process()
    assert "metrics" in [line.split()[0] for line in capfd.readouterr().out.splitlines()]


def test_rows_without_a_group_or_a_unit_are_no_fault_of_features(
    home: Path, in_process: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    edit(home, "    looks_back = days(7)\n", '    looks_back = days(7)\n    group = "shop"\n')
    source = home / "payments.py"
    assert "< 0.002" in source.read_text()
    source.write_text(source.read_text().replace("< 0.002", "< 0.5"))
    in_process()
    assert "features gives another" not in capfd.readouterr().out


def test_groups_are_whole_in_the_batch_that_is_tried_as_in_a_night(
    home: Path, in_process: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    edit(
        home,
        "    looks_back = days(7)\n",
        """    looks_back = days(7)
    group = "account"
    whole_batch = True

    def dataset(self, folder, split):
        samples = super().dataset(folder, split)
        Fraud.sizes = dict(zip(*np.unique(samples.groups, return_counts=True)))
        return samples
""",
    )
    edit(
        home,
        "        return binary_cross",
        """        for number, size in zip(*np.unique(batch["(group)"].numpy(), return_counts=True)):
            if size != self.sizes[number]:
                raise ValueError("a part of a group")
        return binary_cross""",
    )
    in_process()
    assert "loss " in capfd.readouterr().out


def test_features_of_the_day_and_a_constant_prediction_are_noted(
    home: Path, in_process: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    edit(
        home,
        "past.rows(self.looks_back))}",
        'past.rows(self.looks_back)), "share": np.arange(len(rows)) / len(rows)}',
    )
    edit(home, "model(batch).sigmoid()}", "model(batch).sigmoid() * 0 + 0.5}")
    in_process()
    features, constant = (line for line in capfd.readouterr().out.splitlines() if line.startswith("note"))
    assert re.search(r"features gives another share of 16 rows alone than among the \d+ of their", features)
    assert "predict gives the same for all 256 samples of the batch" in constant


def test_pretrained_files_are_downloaded_into_the_home_and_are_no_stray_ones(
    home: Path,
    in_process: Callable[..., None],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DAYBREAK_HOME", str(home))
    lines = """\
    def first_weights(self, model):
        def download(folder):
            (folder / "scale.txt").write_text("0.5")

        folder = pretrained("scale", download, digest="DIGEST")
        for weight in model.parameters():
            weight.data *= float((folder / "scale.txt").read_text())

    def predict(self"""
    edit(home, "    def predict(self", lines)
    edit(home, "from daybreak import (\n", "from daybreak import (\n    pretrained,\n")
    with pytest.raises(DataError, match=r"what is downloaded as scale has the digest \w{64}") as error:
        in_process()
    edit(home, "DIGEST", re.findall(r"\w{64}", str(error.value))[0])
    rehearse(home)
    assert not [line for line in capfd.readouterr().out.splitlines() if line.startswith("note")]
    assert len(list((home / "var/pretrained").glob("scale-*/scale.txt"))) == 1


def test_a_pickle_beside_the_class_is_refused_before_a_night(
    home: Path, in_process: Callable[..., None]
) -> None:
    (home / "risk.pkl").write_bytes(b"")
    edit(home, "import torch\n", "import torch\nRISK = 'risk.pkl'\n")
    with pytest.raises(ParamsError, match=r"risk\.pkl may be a pickle, .* keep it as JSON"):
        in_process()


DAYS = {
    "2025-06-30": "no row of 2025-06-30 has a label; name another day",
    "2025-07-09": "the source has nothing of 2025-07-09; leave --day out, or name one of 2025-06-01",
}


@pytest.mark.parametrize("day", DAYS)
def test_a_day_without_labels_or_data_is_refused(in_process: Callable[..., None], day: str) -> None:
    with pytest.raises(DataError, match=DAYS[day]):
        in_process(date.fromisoformat(day))


def test_labels_that_none_of_the_days_has_are_waited_for(home: Path, in_process: Callable[..., None]) -> None:
    text = (home / "params.yaml").read_text().replace("2025-06-01", "2025-06-25")
    (home / "params.yaml").write_text(text)
    with pytest.raises(DataError, match="the labels of none of 6 days are known, as they take 14 days; wait"):
        in_process()
