# UPerNet, FocalNet-B (two focal levels, srf), 160k iterations.
# Published: 50.2 mIoU, 51.1 multi-scale; 124 M parameters, 1180 GFLOPs at 2048x512.
# (Focal Modulation Networks, arXiv 2203.11926: results table in the authors' README.)
_base_ = 'upernet_focalnet_b_160k.py'

model = dict(backbone=dict(focal_levels=(2, 2, 2, 2)))
