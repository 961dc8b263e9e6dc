"""A run, from its command to its checkpoints: flags, machine, seeds, weight files, FSDP."""
from . import checkpoints, fsdp  # noqa: F401
