"""What a program asks of a running server over HTTP."""
