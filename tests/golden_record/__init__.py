"""What runs of every algorithm gave when it was recorded: what a restructuring must not change."""
