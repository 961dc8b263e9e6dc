"""A run, from its command to its checkpoints: flags, machine, seeds, weight files, FSDP."""
from . import checkpointing, checkpoints, fsdp, resuming, tracking  # noqa: F401
