"""What is read of params.yaml about those downstream."""

from typing import Self

from pydantic import Field, model_validator

from daybreak.contract.sections import Section


class DownstreamParams(Section):
    """Who downstream hears which version serves, and of predictions."""

    webhooks: tuple[str, ...] = ()
    """URLs that hear of each promotion and rollback, and of predictions that were written, as signed JSON.
    Environment variables are filled in."""
    webhook_secret: str = Field("", pattern=r"^(\$\w+)?$")
    """Environment variable of the secret that webhooks are signed by, such as `$DAYBREAK_WEBHOOK_SECRET`."""
    airflow_url: str = ""
    """URL of the Airflow whose assets follow champion and predictions, also those of a terminal. Its login is
    in `$DAYBREAK_AIRFLOW_USER` and `$DAYBREAK_AIRFLOW_PASSWORD`, or a token that does not expire in
    `$DAYBREAK_AIRFLOW_TOKEN`. Empty: the Airflow that `make up` runs."""

    @model_validator(mode="after")
    def _is_signed(self) -> Self:
        if self.webhooks and not self.webhook_secret:
            raise ValueError("webhooks are signed; name the variable of their secret in webhook_secret")
        return self
