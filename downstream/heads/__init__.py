"""Parts of detectors and segmentors that mmdet and mmseg lack, or that papers have otherwise."""
from . import dino, frozen, matching, tta  # noqa: F401
