"""``prefixd admin``: the administration of a running server."""
