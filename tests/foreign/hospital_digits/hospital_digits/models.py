"""Which model a run trains."""

from importlib import import_module


def chosen(context):
    """Return the module of the model that the run config names: ``linear`` or ``network``."""
    return import_module(f"hospital_digits.{context.run_config['model']}")
