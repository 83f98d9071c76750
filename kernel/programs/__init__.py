"""Privacy-critical: the ways in which an agent's records may be touched, each with its proof."""
