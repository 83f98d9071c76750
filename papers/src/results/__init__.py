"""Generators of the pages of results: each plays its runs once and fills tables and figures in."""
