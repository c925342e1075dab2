"""What people and other programs meet: settings, the HTTP service, the command line."""
