"""The dashboard: one static page over the administration's routes."""
