"""Adds the nights to Airflow's menu: a link to `daybreak pages`, whose address is $NIGHTS_UI."""

import os
from typing import Any, ClassVar

from airflow.plugins_manager import AirflowPlugin

ADDRESS = os.environ.get("NIGHTS_UI", "").rstrip("/")


class Nights(AirflowPlugin):
    """The link; a view without a route of its own opens beside Airflow, not in a frame of it."""

    name = "nights"
    external_views: ClassVar[list[dict[str, Any]]] = (
        [{"name": "Nights", "href": f"{ADDRESS}/nights", "destination": "nav", "nav_top_level": True}]
        if ADDRESS
        else []
    )
