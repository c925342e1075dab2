"""What any engine calls, and the bundled decode engine."""
