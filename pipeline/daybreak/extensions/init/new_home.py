"""Writes a home, the git repository of a team's model, from what its data looks like: `init`.

    daybreak init FOLDER --from URL

What it writes belongs to the team from then on; nothing writes it again.
"""

import importlib.machinery
import importlib.util
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from daybreak import dvc_file
from daybreak.contract.errors import JobError, ParamsError, PipelineError, ReleaseError
from daybreak.contract.formats import one_line
from daybreak.extensions.init.expectations_text import expectations_text
from daybreak.extensions.init.module_text import ESTIMATORS, NETWORK, NUM_TREES, Choice, module_text
from daybreak.extensions.init.names import class_name, module_name, registered_name
from daybreak.extensions.init.params_text import batch_size_of, params_text
from daybreak.storage.checkout import git

if TYPE_CHECKING:
    from daybreak.extensions.init.survey import Survey
    from daybreak.extensions.init.survey_rows import Options

TRIED = "lightgbm"  # beside the network, where no model is named
GITIGNORE = """\
.venv
__pycache__/
.pytest_cache/
/nights/
/var/
/data/*
!/data/expectations.yaml
"""
DVC = {
    ".dvc/config": "[core]\n    analytics = false\n    check_update = false\n",
    ".dvc/.gitignore": "/config.local\n/tmp\n/cache\n",
    ".dvcignore": "/nights\n/var\n/.venv\n__pycache__\n",
}


def write(folder: Path, url: str, options: "Options | None" = None, *, model: str = "") -> "Survey":
    """Writes the home to a folder that is empty or not there, and commits it; returns what was found.

    Without a `model` it has the better of a network and trees (family_trial.py). `notes` of the result also
    have the findings of `try` on the newest day. Nothing is left behind on failure.

    Raises ParamsError or DataError with the remedy.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ParamsError(f"{folder} is not empty; name a folder that is, or a new one")
    registered_name(folder.resolve().name)  # rather than refuse it after the data was read
    _expect_known(model)
    from daybreak.extensions.init.survey import survey

    surveyed = survey(url, options)
    if surveyed.images and model in ESTIMATORS:
        raise ParamsError(f"{model} takes no images, and the data has some; leave --model out, for a network")
    name = module_name(folder.resolve().name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.resolve().parent))
    try:
        choice = _choice(surveyed, name, model)
        for path, text in files(surveyed, name, choice, title=folder.resolve().name).items():
            (fresh / path).parent.mkdir(parents=True, exist_ok=True)
            (fresh / path).write_text(text)
        (fresh / dvc_file.FILE).write_text(dvc_file.text(fresh))
        _commit(fresh)
        surveyed = replace(surveyed, model=choice.reason, notes=(*surveyed.notes, *_judged(fresh)))
        fresh.chmod(0o755)
        fresh.replace(folder.resolve())
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return surveyed


def _judged(home: Path) -> tuple[str, ...]:
    """Returns the objections of `try` to a new home, before the home is moved into place."""
    from daybreak.extensions.trial.rehearsal import rehearse

    with tempfile.TemporaryFile("w+") as lines:
        try:
            return rehearse(home, lines=lines)
        except JobError as error:
            lines.seek(0)
            said = [line for line in lines.read().splitlines() if line.strip()]
            return (f"`daybreak try` stops there: {one_line(said[-1]) if said else error}",)
        except PipelineError as error:
            return (f"`daybreak try` stops there: {error}",)


def _expect_known(model: str) -> None:
    """Raises ParamsError where a model is not known, or not installed; before the data was read."""
    if model not in ("", NETWORK, *ESTIMATORS):
        raise ParamsError(f"--model {model} is not known; choose {', '.join([NETWORK, *ESTIMATORS])}")
    if model in ESTIMATORS and (lacking := _lacking(model)):
        raise ParamsError(f"{lacking} is not installed; pip install 'daybreak[estimators]'")


def _lacking(model: str) -> str:
    """Returns the package that an estimator's library needs and that is not installed; "" for none."""
    return next((name for name in (model, "sklearn") if importlib.util.find_spec(name) is None), "")


def _choice(survey: "Survey", name: str, model: str) -> Choice:
    """Returns the model to write: the named one, or the one that predicts the newest days best."""
    if model in ESTIMATORS:
        return Choice(model=model, epochs=NUM_TREES)
    from daybreak.extensions.init.family_trial import choose

    lacking = "" if model or survey.images else _lacking(TRIED)
    families = [NETWORK] if model or survey.images or lacking else [NETWORK, TRIED]
    texts = {family: module_text(survey, name, model=family) for family in families}
    try:
        choice = choose(survey, texts, class_name(name), batch_size=batch_size_of(survey))
    except PipelineError as error:
        choice = Choice(model=NETWORK, reason=f"the trial of models ended: {error}; chose {NETWORK}")
    if lacking:
        why = f"{lacking} is not installed (pip install 'daybreak[estimators]'), so no trees were tried"
        choice = replace(choice, reason=f"{choice.reason}; {why}")
    return choice


def files(survey: "Survey", name: str, choice: Choice, *, title: str) -> dict[str, str]:
    """Returns the texts of the files of a home but dvc.yaml, by path."""
    return {
        "params.yaml": params_text(survey, name, choice, title=title),
        f"{name}.py": module_text(survey, name, model=choice.model),
        f"test_{name}.py": TEST,
        "data/expectations.yaml": expectations_text(survey),
        "README.md": readme_text(survey, name, title=title),
        ".gitignore": GITIGNORE,
        **DVC,
    }


def _commit(folder: Path) -> None:
    git("init", "--quiet", folder=folder)
    git("add", "--all", folder=folder)
    try:
        git("var", "GIT_COMMITTER_IDENT", folder=folder)
        identity = []
    except ReleaseError:  # as in a container
        identity = ["-c", "user.name=Daybreak", "-c", "user.email=daybreak@localhost"]
    message = "Begin with what the data looks like"
    git(*identity, "-c", "commit.gpgsign=false", "commit", "--quiet", "-m", message, folder=folder)


TEST = '''\
"""One day goes through every step, as `daybreak try` shows it."""

from pathlib import Path

from daybreak import rehearse


def test_one_day_goes_through_every_step() -> None:
    rehearse(Path(__file__).parent)
'''


def readme_text(survey: "Survey", name: str, *, title: str) -> str:
    """Returns half a page on what is here and what to do next."""
    from daybreak.extensions.init.survey_columns import markdown

    label = one_line(survey.label_column).replace("`", "'")
    tables = "".join(f"\n- {one_line(sentence)}" for sentence in (*survey.joined, *survey.apart))
    if tables:
        tables = f"\nTables, of which `source` in `params.yaml` is to be looked at:\n{tables}\n"
    return f"""\
# {title}

Predicts `{label}`, retrained every night by Daybreak.

| file | what it is |
| --- | --- |
| `{name}.py` | the table, the model, the loss and what users get |
| `params.yaml` | where the data is, what a night may take and cost |
| `data/expectations.yaml` | what must be true of the data; limits with `# review` are proposals |
| `test_{name}.py` | runs one day through the code, as `try` does |
| `dvc.yaml` | the stages of a night; written by `python -m daybreak.dvc_file` |

One day and one batch through every step, in seconds:

```sh
daybreak try
```

A whole night: data in, judged, prepared; a model trained, compared with the one that serves, promoted if it
is better. It runs what is committed.

```sh
daybreak night
```

The columns, as they were when this was written:

{markdown(survey.columns)}
{tables}
Next: look at the types in `{name}.py`, as numbers that are codes are better `Category()` or `Id()`; then at
each limit with `# review`.
"""
