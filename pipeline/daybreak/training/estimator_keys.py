"""Checks params.yaml and samples for what an estimator does not have: gradients, workers, samples drawn."""

from typing import TYPE_CHECKING, Any

from daybreak.contract.errors import ParamsError

if TYPE_CHECKING:  # pydantic takes longer to import than a plan to make
    from daybreak.contract.sections import Params, PlanSections

# Keys of `train` that are of gradients, of workers, or of the weights that a warm start begins with.
OF_NETWORKS = (
    "batch_size",
    "num_workers",
    "threads",
    "batching",
    "sync",
    "sync_every",
    "rate",
    "scaling",
    "batch_by",
    "batch_growth",
    "warmup",
    "decay",
    "schedule",
    "precision",
    "clip_norm",
    "clip_value",
    "ema",
    "average_last",
    "warm_share",
    "warm_epochs",
    "warm_rate",
    "carry_optimizer",
    "band_rate",
    "follow_memory",
)
OF_UPDATES = ("batch_sizes", "steps")  # keys of `profile`


def expect_applicable(params: "PlanSections | Params") -> None:
    """Raises ParamsError where params.yaml asks for what an estimator does not have."""
    train, plan = params.train, params.plan
    given = [f"train.{name}" for name in OF_NETWORKS if name in train.model_fields_set]
    given += [f"profile.{name}" for name in OF_UPDATES if name in params.profile.model_fields_set]
    if given:
        are, them = ("is", "it") if len(given) == 1 else ("are", "them")
        raise ParamsError(
            f"{', '.join(given)} {are} for networks, and {params.workload.use} is an estimator; leave {them} "
            f"out, and set what its trees need in the class"
        )
    wanted = {
        "train.cold_every: 1, as trees are grown anew each night": train.cold_every != 1,
        "train.epochs to a whole number, of trees": train.epochs != round(train.epochs),
        "plan.batch_sizes to none, as a tree needs all samples": bool(plan.batch_sizes),
        "plan.max_machines: 1, as trees are grown on one machine": plan.max_machines != 1,
        "plan.objective to another than quality": plan.objective == "quality",
        "gate.refit_epochs: 0, as no trees are added after the verdict": params.gate.refit_epochs != 0,
    }
    if change := next((text for text, is_wrong in wanted.items() if is_wrong), ""):
        raise ParamsError(f"{params.workload.use} is an estimator and no network; set {change}")


def expect_all_samples(workload: Any, dataset: Any) -> None:
    """Raises ParamsError where the samples of an estimator are to be drawn by weight or length."""
    from daybreak.training.sampling import Sampling  # numpy, which takes longer to import than a plan to make

    sampling = Sampling.of(dataset)
    given = {name: getattr(sampling, name) for name in ("weights", "lengths", "groups")}
    if what := next((name for name, values in given.items() if values is not None), ""):
        instead = ", and give the class weights(self, column)" if what == "weights" else ""
        raise ParamsError(
            f"{type(workload).__name__} has {what}, by which samples are drawn, and an estimator takes all "
            f"at once; leave them out{instead}"
        )
