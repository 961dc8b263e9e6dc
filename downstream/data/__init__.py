"""A person's files become a data set: their checks, their loading, and data that is made."""
from . import label_maps, loading, panoptic  # noqa: F401
