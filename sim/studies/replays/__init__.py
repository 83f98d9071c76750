"""Worked instances played through the real Strategy, ClientApp and messages."""

from .instance import Instance, Replay, load_instance, replay_file

__all__ = ["Instance", "Replay", "load_instance", "replay_file"]
