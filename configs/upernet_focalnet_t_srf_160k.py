# UPerNet, FocalNet-T (two focal levels, srf), 160k iterations.
# Published: 46.5 mIoU, 47.2 multi-scale; 61 M parameters, 944 GFLOPs at 2048x512.
# (Focal Modulation Networks, arXiv 2203.11926: results table in the authors' README.)
_base_ = 'upernet_focalnet_t_160k.py'

model = dict(backbone=dict(focal_levels=(2, 2, 2, 2)))
