from . import label_maps  # noqa: F401
