"""The store's own administration: what is there, moving and removing it, files of it."""
