"""What lineage reads of params.yaml."""

from daybreak.contract.sections import Section


class LineageParams(Section):
    """Who hears which data each night read and made."""

    openlineage: str = ""
    """Namespace under which the OpenLineage server of `$OPENLINEAGE_URL` hears which data each night
    read and made, and which version serves. Empty: none hears."""
