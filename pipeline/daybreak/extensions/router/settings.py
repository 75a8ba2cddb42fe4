"""What the router reads of params.yaml: its keys of `serving`."""

from ipaddress import ip_network

from pydantic import Field, field_validator

from daybreak.contract.sections import Section


class RouterParams(Section):
    """How `daybreak serve` answers users, and what a request may ask of it."""

    host: str = Field("127.0.0.1", min_length=1)
    """Address that the router listens on."""
    port: int = Field(8000, ge=0, le=65_535)
    """Port that the router listens on; 0: any that is free."""
    timeout_s: float = Field(1, gt=0)
    """Seconds until a request without an answer of the model gets the popular items, or for rows an error."""
    max_top: int = Field(100, ge=1)
    """Items that an answer may have."""
    max_body_bytes: int = Field(1_000_000, ge=1)
    """Bytes that a request may have; a request for predictions has up to 1,000 rows."""
    max_requests_per_s: float = Field(1000, ge=0)
    """Requests a second that one address may send; 0: any number. All users behind a proxy are one
    address, unless `trusted_proxies` names it."""
    max_connections_per_address: int = Field(250, ge=1)
    """Connections that one address may hold at once; one more takes the place of one that waits."""
    headers_timeout_s: float = Field(5, gt=0)
    """Seconds that the headers of a request may take to come."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks of proxies, such as `10.0.0.0/8`, whose `X-Forwarded-For` says for whom a
    request is; empty: the header is not read."""
    keep_users: int = Field(100_000, ge=1)
    """Users whose answers are kept in memory, for each version; fewer where names of items have more than 60
    characters. Lower it to save memory."""
    keep_rows: float = Field(0, ge=0, le=1)
    """Share of requests for predictions whose rows the log keeps with their exposures, for `watch` to compare
    with the training days; at most 10,000 rows a day. 0: none, since rows may be personal."""

    @field_validator("trusted_proxies")
    @classmethod
    def _are_addresses(cls, proxies: tuple[str, ...]) -> tuple[str, ...]:
        for proxy in proxies:
            try:
                ip_network(proxy)
            except ValueError:
                raise ValueError(
                    f"{proxy} is not an address or a network; write one such as 10.0.0.7 or 10.0.0.0/8"
                ) from None
        return proxies
