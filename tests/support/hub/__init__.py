"""A small Hub on this machine for the real huggingface_hub client, and processes in which to use it."""

from .elsewhere import Elsewhere, Outcome
from .server import READER, WRITER, LocalHub, Request

__all__ = ["READER", "WRITER", "Elsewhere", "LocalHub", "Outcome", "Request"]
