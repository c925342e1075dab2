"""``prefixd explain``: asks a running server why."""
