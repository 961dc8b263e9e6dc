"""What the downstream experiments need beside mmdet and mmseg: importing it registers everything.

Configs carry ``custom_imports = dict(imports=['backbones', 'downstream'])``.
"""
from . import checkpoints, dino, fsdp, loading, matching, panoptic, results  # noqa: F401
