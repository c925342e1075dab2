"""Seeing to a running service over HTTP: what it holds, what goes and stays, and what was done to it."""
