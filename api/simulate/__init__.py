"""What would be hit: a trace of requests replayed through eviction policies and capacities."""
