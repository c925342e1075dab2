"""The store over HTTP, for engines on other machines."""
