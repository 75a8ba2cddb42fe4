"""A loopback server that speaks the JSON of the Cloud Billing Catalog API, page by page."""

import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlparse

from tests.loopback import Quiet, served

COMPUTE_ENGINE, VERTEX_AI = "6F81-5844-456A", "C7E2-9256-1C43"


def sku(
    description: str,
    usd: float,
    *,
    regions: tuple[str, ...] = ("us-central1",),
    usage: str = "OnDemand",
    group: str = "CPU",
    unit: str = "h",
) -> dict[str, Any]:
    """A SKU as the API tells it: whole dollars as a string, the rest in billionths."""
    units = int(usd)
    number = f"{zlib.crc32(description.encode()):08X}"
    return {
        "name": f"services/{COMPUTE_ENGINE}/skus/{number}",
        "skuId": number,
        "description": description,
        "category": {
            "serviceDisplayName": "Compute Engine",
            "resourceFamily": "Compute",
            "resourceGroup": group,
            "usageType": usage,
        },
        "serviceRegions": list(regions),
        "pricingInfo": [
            {
                "summary": "",
                "pricingExpression": {
                    "usageUnit": unit,
                    "displayQuantity": 1,
                    "tieredRates": [
                        {
                            "startUsageAmount": 0,
                            "unitPrice": {
                                "currencyCode": "USD",
                                "units": str(units),
                                "nanos": round((usd - units) * 1e9),
                            },
                        }
                    ],
                },
                "currencyConversionRate": 1,
                "effectiveTime": "2026-11-20T10:50:40.206Z",
            }
        ],
        "serviceProviderName": "Google",
    }


@dataclass
class Billing:
    """A price server: its prices, its faults and the requests so far."""

    skus: list[dict[str, Any]]
    vertex_skus: list[dict[str, Any]] = field(default_factory=list)
    key: str = "a-key"
    page_size: int = 3
    failures: list[int] = field(default_factory=list)  # statuses of the next answers
    body: bytes | None = None  # said instead of JSON
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def answer(self, path: str, key: str) -> tuple[int, bytes]:
        """Status and body for a request."""
        self.asked.append(path)
        if self.failures:
            return self.failures.pop(0), b'{"error": {"code": 503, "message": "try again"}}'
        parts = urlparse(path)
        listed = {
            f"/v1/services/{COMPUTE_ENGINE}/skus": self.skus,
            f"/v1/services/{VERTEX_AI}/skus": self.vertex_skus,
        }
        if parts.path not in listed:
            return 404, b'{"error": {"code": 404, "message": "no such service"}}'
        if key != self.key:
            return 400, b'{"error": {"code": 400, "message": "API key not valid. Please pass a valid key."}}'
        if self.body is not None:
            return 200, self.body
        first = int(parse_qs(parts.query).get("pageToken", ["0"])[0])
        skus = listed[parts.path]
        page: dict[str, Any] = {"skus": skus[first : first + self.page_size]}
        more = first + self.page_size < len(skus)
        page["nextPageToken"] = str(first + self.page_size) if more else ""
        return 200, json.dumps(page).encode()


@contextmanager
def serving(billing: Billing) -> Iterator[Billing]:
    """The server on a free port of loopback, its address in `url`."""

    class Handler(Quiet):
        def do_GET(self) -> None:
            status, body = billing.answer(self.path, self.headers.get("X-Goog-Api-Key", ""))
            self.send_response(status)
            self.send_header("Content-Type", "application/json; charset=UTF-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with served(Handler) as address:
        billing.url = f"http://{address}"
        yield billing
