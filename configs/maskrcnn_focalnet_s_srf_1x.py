# Mask R-CNN, FocalNet-S (two focal levels, srf), 1x.
# Published: 48.0 box AP, 42.7 mask AP; 70.8 M parameters, 356 GFLOPs at 1280x800.
# (Focal Modulation Networks, arXiv 2203.11926: results table in the authors' README.)
_base_ = 'maskrcnn_focalnet_s_1x.py'

model = dict(backbone=dict(focal_levels=(2, 2, 2, 2)))
