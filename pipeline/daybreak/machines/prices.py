"""Shows the prices of machines, or reads them again from the provider: `daybreak prices`.

Prices that were read are kept under the home of the nights, in a file of the form of `prices.csv`, and
override those; an implausible price is refused (`rates`) and the old one kept. The key of the API comes from
the environment and goes into a header, so that no address in a log or an error contains it.
"""

import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daybreak.contract import records
from daybreak.contract.errors import JobError, ParamsError
from daybreak.contract.machine import Price
from daybreak.contract.record_parts import LOCAL
from daybreak.machines import catalog, fees, pricelist
from daybreak.machines.rates import Refreshed, rates, refreshed

if TYPE_CHECKING:
    import requests

URL = "https://cloudbilling.googleapis.com"
COMPUTE_ENGINE = "6F81-5844-456A"  # the service whose SKUs are machines
VERTEX_AI = "C7E2-9256-1C43"  # the service whose SKUs are its fees, and on-demand machines with the fee
KEY = "CLOUD_BILLING_API_KEY"
PAGE_SIZE = 5000
TIMEOUT_S = (10, 60)  # to connect, to answer
RETRIES = 3
UNKNOWN = "not known, and not planned; daybreak prices --refresh reads it"
HEAD = ("machine", "device", "region", "rented", "$ an hour", "listed", "fee", "of", "source")


def listed(kept: Path, *, machine: str = "*", region: str = "*") -> list[Price]:
    """Returns the prices of the catalog, of machines and regions that match."""
    machines = catalog.rented(kept)
    return [
        price
        for each in machines
        if fnmatchcase(each.name, machine) and fnmatchcase(each.region, region)
        for price in each.prices
    ]


def table(kept: Path, *, machine: str = "*", region: str = "*") -> Iterator[str]:
    """Yields the catalog as lines of text: every price with its date and its source, "–" if unknown."""
    at_hand = (LOCAL, "here", "here", "owned", "0.0000", "", "", "–", "measured by the profile of the night")
    machines = [
        each
        for each in catalog.rented(kept)
        if fnmatchcase(each.name, machine) and fnmatchcase(each.region, region)
    ]
    shown = fnmatchcase(LOCAL, machine) and fnmatchcase("here", region)
    cells: list[tuple[str, ...]] = [HEAD, *([at_hand] if shown else [])]
    cells += [_cells(price, device=each.device) for each in machines for price in each.prices]
    if len(cells) == 1:
        raise ParamsError(f"no machine is named {machine} in {region}; leave both out to see all there are")
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEAD))]
    for row in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    yield from _told(
        "Vertex AI's fees are from:",
        ((price.fee.source, each.device) for each in machines for price in each.prices if price.fee),
    )
    yield from _told(
        "FLOP/s, bandwidth and links, which plans scale a profile by:",
        ((each.speeds.source, each.device) for each in machines),
    )
    yield ""
    disk = fees.boot_disk("pd-ssd", "us-central1", size_gib=200)
    yield f"a job's boot disk comes on top: {disk.usd_per_hour:.4f} for 200 GiB of pd-ssd in us-central1"


def _cells(price: Price, *, device: str) -> tuple[str, ...]:
    total, fee = price.total_usd_per_hour, price.fee
    if total is None:
        return (price.name, device, price.region, price.strategy, "–", "–", "–", "–", UNKNOWN)
    fee_usd = f"{fee.usd_per_hour:.4f}{' inferred' if fee.inferred else ''}" if fee else "–"
    return (
        price.name,
        device,
        price.region,
        price.strategy,
        f"{total:.4f}",
        f"{price.usd_per_hour:.4f}",
        fee_usd,
        str(price.dated),
        price.source,
    )


def _told(heading: str, sourced: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yields each source once, with the devices that it is of."""
    devices: dict[str, dict[str, None]] = {}
    for source, device in sourced:
        devices.setdefault(source, {})[device] = None
    if devices:
        yield ""
        yield heading
    for source, those in devices.items():
        yield f"  {', '.join(those)}: {source}"


def refresh(kept: Path, *, url: str = URL) -> Refreshed:
    """Reads all prices again and writes the plausible ones to the file `kept`; returns the result.

    Raises ParamsError without a key, JobError if the API does not answer as it should; the file stays.
    """
    key = os.environ.get(KEY, "")
    if not key:
        raise ParamsError(
            f"{KEY} is not set; put a key of the Cloud Billing API there (one comes from APIs and services)"
        )
    if not url.startswith(("http://", "https://")):
        raise ParamsError(f"--url {url} is not an address; write it as {URL}, or leave it out")
    listed = pricelist.prices(kept)
    read = rates(sku for service in (COMPUTE_ENGINE, VERTEX_AI) for sku in skus(url, key, service=service))
    result = refreshed(listed, catalog.rented(), read, today=datetime.now(UTC).date())
    before = pricelist.read(kept.read_text(), source=str(kept)) if kept.exists() else ()
    now = {price.key: price for price in (*before, *result.accepted)}
    if now:
        records.replace_text(kept, pricelist.as_table(now.values()))
    return result


def skus(url: str, key: str, *, service: str) -> Iterator[dict[str, Any]]:
    """Yields all SKUs of a service, page by page; JobError if the API does not answer as it should."""
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3.util import Retry

    retry = Retry(
        total=RETRIES, backoff_factor=0.5, status_forcelist=(429, 500, 502, 503, 504), raise_on_status=False
    )
    address = f"{url.rstrip('/')}/v1/services/{service}/skus"
    query = {"currencyCode": "USD", "pageSize": str(PAGE_SIZE)}
    with requests.Session() as session:
        session.mount("http://", HTTPAdapter(max_retries=retry))
        session.mount("https://", HTTPAdapter(max_retries=retry))
        session.headers["X-Goog-Api-Key"] = key
        seen: set[str] = set()
        while True:
            try:
                answer = session.get(address, params=query, timeout=TIMEOUT_S, allow_redirects=False)
            except requests.RequestException as error:
                raise JobError(
                    f"{address} does not answer: {type(error).__name__}; prices stay, try again"
                ) from None
            page = _page(address, answer)
            yield from page.get("skus", ())
            token = page.get("nextPageToken", "")
            if not token:
                return
            if token in seen:
                raise JobError(f"{address} gives the same page again and again; prices stay, try again later")
            seen.add(token)
            query["pageToken"] = token


def _page(address: str, answer: "requests.Response") -> dict[str, Any]:
    """The JSON of a page; JobError with the message of the API if there is none."""
    try:
        page = answer.json()
    except ValueError:
        page = None
    if answer.status_code != 200:
        said = page.get("error", {}).get("message", "") if isinstance(page, dict) else ""
        reason = f": {' '.join(said.split())[:200]}" if said else ""
        do = f"look at {KEY}" if answer.status_code in (400, 401, 403) else "try again later"
        raise JobError(f"{address} answers {answer.status_code}{reason}; prices stay, {do}")
    if not isinstance(page, dict):
        raise JobError(f"{address} answers something that is not a JSON object; prices stay, try again later")
    return page
