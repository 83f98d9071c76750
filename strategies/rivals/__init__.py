"""Server halves of the algorithms that the papers compare themselves with."""
