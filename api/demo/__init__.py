"""The demonstration: a real model answers from cached prefixes, and is checked against clean runs."""
