"""A run, from its command to its checkpoints: flags, machine, seeds, weight files, FSDP."""
from . import checkpoints, fsdp, tracking  # noqa: F401
