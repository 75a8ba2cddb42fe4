"""Lists the extensions, a line each, and the hooks by which they join the core.

The core is one night on one machine, judged by held-out scores. It imports no extension: it looks hooks up in
this table, and their functions are imported when used. An extension without its folder counts as absent, so
the core runs without any extension.

An extension brings its keys of params.yaml by a model in `sections`, and reads them by `Sections.section`.
Some keys stay in the core's models, since rules or code of the core read them too; only `keys` names them:

    plan.spot                               which machines have a price that may be paid
    plan.objective, explore_usd             how plans are ranked, what is left of the dollars
    train.sync, threads, band_rate,         rules between keys, and the recipe of the job, whatever engine it
    follow_memory                           is for
    gate.scores                             whom the gate asks
"""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "extensions"


@dataclass(frozen=True, kw_only=True)
class Extension:
    """What an extension adds, by import paths below its folder; an empty path adds nothing."""

    commands: str = ""  # module whose public functions are commands (daybreak/cli.py)
    engine: str = ""  # function of a job's recipe; returns what takes its updates (training/worker.py)
    shard: str = ""  # function that divides a model's weights, with its loss and device; returns the loss
    candidates: str = ""  # function of a job, machines and limits; yields further ways (planning/planner.py)
    hazard: str = ""  # function of the last nights; returns how often spot machines are lost (prediction/)
    on_spot: str = ""  # function of a plan on spot; returns it with checkpoints and the worst case
    steering: str = ""  # class that chooses among spot, on demand and waiting (daybreak/jobs/escalation.py)
    choice: str = ""  # function of the best way and all others; returns tonight's, and its extra dollars
    length: str = ""  # function of a plan and one that plans more samples; returns tonight's plan
    proposal: str = ""  # function of the home and params; returns assignments that a night trains with
    leftover: str = ""  # function of the home, once its newest night has ended in time
    band_limit: str = ""  # function of a model and a share of its spectrum, which it leaves out
    limitable: str = ""  # function of a model; returns the layers that `band_limit` changes
    guard: str = (
        ""  # function of a model that returns what follows a limit of memory (training/micro_batch.py)
    )
    judge: str = ""  # class that judges versions by their users (daybreak/evaluation/live_judge.py)
    target: str = ""  # class of what follows a release by the serving log (daybreak/rollout/targets.py)
    after_commit: str = ""  # function of the home and a new commit of its ledger; its failure changes nothing
    downstream: str = ""  # function of the home that tells others what serves and was predicted, each once
    share: str = ""  # function that plans a night with its share of the machines that a fleet has in common
    board: str = ""  # function of the home, or `all` of its fleet, that writes a page over their nights
    now: str = ""  # function of the home that writes what stands now to a file, after a night and each watch
    digest: str = ""  # function of the home and days told; returns the event of today's digest, or None
    checks: str = ""  # function of the home and params; yields what `check` finds (extensions/router/)
    jobs: str = ""  # function of the home; returns who besides nights may have jobs (daybreak/jobs/reaper.py)
    sections: str = ""  # models of its keys of params.yaml, each as `section=path` (contract/params.py)
    keys: str = (
        ""  # what nothing reads of params.yaml without it: `section`, `section.key`, `section.key=value`
    )


EXTENSIONS = {
    "vertex": Extension(),  # params.yaml names its classes, as it does those of a team
    "kubernetes": Extension(),
    "slurm": Extension(),
    "threads": Extension(engine=":engine", keys="train.threads"),
    "tpu": Extension(engine=":engine"),
    "averaging": Extension(engine=":engine", keys="train.sync"),
    "fsdp": Extension(engine=":engine", shard="fsdp:shard"),
    "exploration": Extension(
        choice="exploration:explored",
        length="quality:lengthened",
        keys="plan.objective=quality plan.explore_usd",
    ),
    "search": Extension(
        commands="commands",
        proposal="proposal:propose",
        leftover="leftover:search_leftover",
        checks="checks:checks",
        sections="search=settings:SearchParams",
        keys="search",
    ),
    "spot": Extension(
        hazard="hazard:hazard_of",
        on_spot="spot_plan:on_spot",
        steering="steering:Steering",
        keys="plan.spot",
    ),
    "unlike": Extension(candidates="unlike:candidates"),
    "memory_limits": Extension(guard="memory_guard:guard", keys="train.follow_memory=band_limited"),
    "band_limits": Extension(
        band_limit="band_limited:limit",
        limitable="band_limited:limitable",
        keys="train.band_rate train.follow_memory=band_limited",
    ),
    "live_test": Extension(
        judge="by_users:ByUsers",
        sections="live_test=settings:LiveTestParams watch=settings:HoldbackParams",
        keys="live_test watch.holdback gate.scores",
    ),
    "router": Extension(
        commands="commands",
        target="routers:Routers",
        checks="row_sample:checks",
        sections="serving=settings:RouterParams",
        keys="serving.host serving.port serving.timeout_s serving.max_top serving.max_body_bytes "
        "serving.max_requests_per_s serving.max_connections_per_address serving.headers_timeout_s "
        "serving.trusted_proxies serving.keep_users serving.keep_rows",
    ),
    "init": Extension(commands="commands"),
    "trial": Extension(commands="commands"),
    "simulation": Extension(commands="commands"),
    "bag": Extension(commands="commands", jobs="folder:standings"),
    "care": Extension(commands="commands"),
    "lineage": Extension(
        commands="commands",
        after_commit="open_lineage:send",
        checks="open_lineage:checks",
        sections="notify=settings:LineageParams",
        keys="notify.openlineage",
    ),
    "downstream": Extension(
        commands="commands",
        downstream="teller:tell",
        checks="airflow_assets:checks",
        sections="notify=settings:DownstreamParams",
        keys="notify.webhooks notify.webhook_secret notify.airflow_url",
    ),
    "pages": Extension(
        commands="commands",
        board="fleet_rows:write_board",
        now="fleet_rows:write_now",
        digest="digest:digest",
        sections="notify=settings:DigestParams",
        keys="notify.digest_at",
    ),
    "fleets": Extension(commands="commands", after_commit="month:tell", share="evening:plan"),
    "erasure": Extension(commands="commands"),
    "notebooks": Extension(),
    "adapters": Extension(),  # base classes of a team's
}


def paths(hook: str) -> list[str]:
    """Returns the import paths that the extensions have for a hook, in the order of the table."""
    return [
        f"daybreak.extensions.{name}.{path}".replace(".:", ":")
        for name, extension in EXTENSIONS.items()
        for path in getattr(extension, hook).split()
        if is_here(name)
    ]


def is_here(name: str) -> bool:
    """Returns whether the folder of an extension is part of this installation."""
    return (FOLDER / name / "__init__.py").exists()


def sections() -> Iterator[tuple[str, str]]:
    """Yields the section of params.yaml, and the import path of the model, of all that extensions bring."""
    for name, extension in EXTENSIONS.items():
        for section, _, path in (entry.partition("=") for entry in extension.sections.split()):
            if is_here(name):
                yield section, f"daybreak.extensions.{name}.{path}"


def needed_for(key: str) -> str:
    """Returns the absent extension without which nothing reads a key of params.yaml; empty where none is."""
    absent = (name for name in EXTENSIONS if not is_here(name))
    return next((name for name in absent if key in EXTENSIONS[name].keys.split()), "")


def unread_keys(params: Any) -> Iterator[tuple[str, str]]:
    """Yields each key of the core that nothing here reads, since its extension is absent, with a sentence."""
    for name in (name for name in EXTENSIONS if not is_here(name)):
        for asked in EXTENSIONS[name].keys.split():
            key, _, value = asked.partition("=")
            section = getattr(params, key.partition(".")[0], params)
            field = type(section).model_fields.get(key.partition(".")[2])
            if field is None:  # of a model that the extension brings; `params.load` refuses it
                continue
            given = getattr(section, key.partition(".")[2])
            if given != field.get_default(call_default_factory=True) and value in ("", given):
                yield key, f"{key}: {given} {absent(name)}"


def absent(name: str) -> str:
    """Returns the end of a sentence on a key that needs an absent extension."""
    return (
        f"needs the extension {name}, which is not in this installation; remove the key, or restore "
        f"pipeline/daybreak/extensions/{name}"
    )


def functions(hook: str) -> list[Any]:
    """Returns the functions that the extensions have for a hook, which are imported now."""
    return [imported(path) for path in paths(hook)]


def imported(path: str) -> Any:
    """Returns what an import path `module:name` names."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
