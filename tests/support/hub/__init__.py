"""A small Hub on this machine for the real huggingface_hub client, and processes in which to use it."""

from .elsewhere import Elsewhere, Outcome
from .server import LocalHub, Request
from .store import Store

__all__ = ["Elsewhere", "LocalHub", "Outcome", "Request", "Store"]
