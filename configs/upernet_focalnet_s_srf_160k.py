# UPerNet, FocalNet-S (two focal levels, srf), 160k iterations.
# Published: 49.3 mIoU, 50.1 multi-scale; 83 M parameters, 1035 GFLOPs at 2048x512.
# (Focal Modulation Networks, arXiv 2203.11926: results table in the authors' README.)
_base_ = 'upernet_focalnet_s_160k.py'

model = dict(backbone=dict(focal_levels=(2, 2, 2, 2)))
