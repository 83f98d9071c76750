"""A run as a Strategy of Flower: its base class, constructor arguments and wrappers."""
