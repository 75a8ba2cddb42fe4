"""Says what versions were made of and who used what, to people and to a lineage server."""
