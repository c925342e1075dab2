"""A store in another process: what is said over a socket, and both ends of it."""
