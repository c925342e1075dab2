"""Pure orderings and pure functions: who is evicted, what is admitted, what is loaded or computed."""
