"""Attacks on the private path, as tests through the real participant."""
