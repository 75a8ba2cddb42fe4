"""A model that a team has in MLflow, as MLflow describes it.

Nothing of the model is loaded here: it may be a pickle, and this process has secrets.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

from daybreak.contract.errors import ParamsError, ReleaseError, without_password
from daybreak.registry.carried_code import location_of
from daybreak.storage.home import Home
from daybreak.storage.mlflow_client import locations, session

if TYPE_CHECKING:
    from mlflow.models import Model

URI = re.compile(r"models:/(?P<name>[^/@]+)(/(?P<number>\d+)|@(?P<alias>[^/@]+))")


@dataclass(frozen=True, kw_only=True)
class TeamModel:
    """MLflow's description of a model."""

    uri: str  # models:/NAME/VERSION
    flavour: str
    registered_on: date


def find(home: Home, model: str, columns: Collection[str]) -> TeamModel:
    """Returns the description of a model that predicts from rows with these columns.

    Raises ParamsError where it does not, and ReleaseError where MLflow lacks it.

    Args:
        home: whose MLflow has the model.
        model: models:/NAME/VERSION or models:/NAME@ALIAS
        columns: features of a row.
    """
    if (named := URI.fullmatch(model)) is None:
        raise ParamsError(
            f"{model} is not a model of MLflow; write models:/NAME/VERSION or models:/NAME@ALIAS"
        )
    from mlflow.exceptions import MlflowException
    from mlflow.models import Model

    with session(home) as client:
        try:
            found = (
                client.get_model_version(named["name"], named["number"])
                if named["number"]
                else client.get_model_version_by_alias(named["name"], named["alias"])
            )
            uri = f"models:/{named['name']}/{found.version}"
            described = Model.load(locations(home).expect_known_host(location_of(uri)))
        except (MlflowException, OSError) as error:
            message = without_password(" ".join(str(error).split()))[:200]
            raise ReleaseError(f"{model} is not to be had: {message}; look at it in MLflow") from None
    return TeamModel(
        uri=uri,
        flavour=_flavour(uri, described, columns),
        registered_on=datetime.fromtimestamp(found.creation_timestamp / 1000, UTC).date(),
    )


def _flavour(uri: str, described: "Model", columns: Collection[str]) -> str:
    """Returns the flavour of a model; ParamsError where it does not predict from rows with these columns."""
    flavours = [name for name in described.flavors if name != "python_function"]
    if "python_function" not in described.flavors:
        raise ParamsError(
            f"{uri} is of the flavour {', '.join(flavours) or 'none'}, which is not a pyfunc; log it again "
            f"by a flavour of MLflow that is one"
        )
    flavour = flavours[0] if flavours else "python_function"
    schema = described.signature.inputs if described.signature else None
    if schema is not None and schema.is_tensor_spec():
        raise ParamsError(
            f"{uri}, of the flavour {flavour}, takes tensors and not columns of rows; log it again as a "
            f"pyfunc of rows, with their features in it"
        )
    needed = [] if schema is None else schema.required_input_names()
    if lacking := [str(name) for name in needed if name not in columns]:
        raise ParamsError(
            f"{uri} needs the column{'s' * (len(lacking) > 1)} {', '.join(lacking)}, which the table of the "
            f"workload lacks; declare what the source has of them, or log the model "
            f"again as a pyfunc that makes them of the rows"
        )
    return flavour
