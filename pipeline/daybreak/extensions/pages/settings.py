"""What pages reads of params.yaml."""

from pydantic import Field

from daybreak.contract.sections import Section


class DigestParams(Section):
    """When people hear how all models stand."""

    digest_at: str = Field("", pattern=r"^$|^([01]\d|2[0-3]):[0-5]\d$")
    """When one message a day says how each model stands, of this home or of the fleet that it leads, such as
    `07:30`, in `night.time_zone`; the first hourly watch from then on sends it. Empty: never."""
