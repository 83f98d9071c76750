"""Templates of `privet new`, with placeholders such as $name."""
