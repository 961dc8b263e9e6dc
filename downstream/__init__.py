"""What the downstream experiments need beside mmdet and mmseg: importing it registers everything.

Configs carry ``custom_imports = dict(imports=['backbones', 'downstream'])``.
"""
from . import quiet  # noqa: F401  before all that imports mmdet and mmseg

# isort: split
from . import checkpoints, dino, fsdp, loading, panoptic, results  # noqa: F401
