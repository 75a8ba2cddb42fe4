"""Reports the data that a night read and made, and the version that serves, to an OpenLineage server.

OpenLineage's own client finds the server by $OPENLINEAGE_URL or a file openlineage.yml. A night is a run,
whose id follows from its name: told twice, it is the same run. A rollback is a run of its own. A server that
does not answer is logged, and nothing fails with it.
"""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from daybreak.contract import extras
from daybreak.contract.errors import PipelineError
from daybreak.extensions.lineage.settings import LineageParams
from daybreak.storage import ledger
from daybreak.storage.home import Home
from daybreak.storage.ledger import Entry

if TYPE_CHECKING:
    from openlineage.client.event_v2 import RunEvent
    from openlineage.client.generated.base import DatasetFacet, RunFacet

    from daybreak.contract.sections import Params

log = logging.getLogger(__name__)

PRODUCER = "urn:daybreak"  # what sends the events


def checks(home: Home, params: "Params") -> Iterator[tuple[str, bool, str]]:
    """Yields whether the client is installed that `notify.openlineage` needs, for `daybreak check`."""
    if namespace := params.section(LineageParams).openlineage:
        try:
            import openlineage.client  # noqa: F401
        except ImportError as error:
            yield "notify.openlineage", False, extras.missing(error) or str(error)
        else:
            yield "notify.openlineage", True, f"events of the namespace {namespace}"


def send(home: Home, commit: str) -> bool:
    """Tells of the night or the rollback of a commit, where `notify.openlineage` names a namespace.

    Returns False where the server was not told.
    """
    try:
        loaded = home.params
        if not (namespace := loaded.section(LineageParams).openlineage):
            return True
        from openlineage.client import OpenLineageClient, set_producer

        (entry,) = ledger.entries_of(home, [one for one in ledger.commits(home) if one.id == commit])
        set_producer(PRODUCER)
        client = OpenLineageClient()
        for event in events_of(entry, namespace=namespace, model=loaded.register_.name):
            client.emit(event)
        client.close()
        return True
    except ImportError:
        log.error("notify.openlineage is set, and its client is missing: pip install 'daybreak[lineage]'")
    except PipelineError as error:
        log.error("no event was sent to OpenLineage: %s", error)
    except Exception as error:  # noqa: BLE001 - whatever the client says, the ledger has the night
        log.error("no event was sent to OpenLineage: %s", str(error).partition("\n")[0][:300])
    return False


def events_of(entry: Entry, *, namespace: str, model: str) -> "list[RunEvent]":
    """Returns the start and the end of a night, or of a rollback, as events of OpenLineage."""
    from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
    from openlineage.client.facet_v2 import dataset_version_dataset, error_message_run, nominal_time_run
    from openlineage.client.uuid import generate_static_uuid

    night, verdict = entry.night, entry.verdict
    ended = entry.closed_at or night.started_at
    began = ended if entry.rollback else night.started_at
    id = generate_static_uuid(began, (entry.commit if entry.rollback else night.id).encode())
    facets: dict[str, RunFacet] = {"nominalTime": nominal_time_run.NominalTimeRunFacet(began.isoformat())}
    end = RunState.COMPLETE
    if verdict and verdict.failed and not entry.rollback:
        end = RunState.FAIL
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(verdict.reason, "python")

    def version(digest: str) -> "dict[str, DatasetFacet]":
        return {"version": dataset_version_dataset.DatasetVersionDatasetFacet(digest)}

    read, made = datasets_of(entry)
    inputs = [InputDataset(namespace, f"{model}.{name}", facets=version(read[name])) for name in read]
    outputs = [OutputDataset(namespace, f"{model}.{name}", facets=version(made[name])) for name in made]
    run = Run(str(id), facets=facets)
    job = Job(namespace, f"{model}.{'rollback' if entry.rollback else 'night'}")
    return [
        RunEvent(eventTime=at.isoformat(), eventType=kind, run=run, job=job, inputs=inputs, outputs=outputs)
        for at, kind in ((began, RunState.START), (ended, end))
    ]


def datasets_of(entry: Entry) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the inputs and outputs of a night by name: digests of data, numbers of versions.

    Inputs are the rows of all days so far, the tables joined to tonight's rows, and the champion; `champion`
    among the outputs is the version that serves from then on, which `predictions` are by, unless they came
    ahead of it.
    """
    read, made = {}, {}
    if entry.batch:
        read["rows"] = entry.batch.digest
        read |= {f"joined_{name}": digest for name, digest in entry.batch.joined.items()}
    if entry.champion:
        read["champion"] = str(entry.champion.version)
    if entry.report:
        made["clean_rows"] = entry.report.digest
    if entry.dataset:
        made["arrays"] = entry.dataset.digest
    if entry.version:
        made["model"] = str(entry.version.number)
    if entry.release:
        made["champion"] = str(entry.release.version)
    if entry.predictions:
        made["predictions"] = entry.predictions.digest
    return read, made
