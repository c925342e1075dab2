"""What ``prefixd bench`` measures: the product's own speed on this machine, as JSON others script."""
