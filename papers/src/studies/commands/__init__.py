"""Commands that the papers add to `privet`, by entry points."""
