"""The ``privet`` command."""
