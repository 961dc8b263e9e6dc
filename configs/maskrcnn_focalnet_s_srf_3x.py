# Mask R-CNN, FocalNet-S (two focal levels, srf), 3x.
# Published: 48.9 box AP, 43.6 mask AP; 70.8 M parameters, 356 GFLOPs at 1280x800.
# (Focal Modulation Networks, arXiv 2203.11926: results table in the authors' README.)
_base_ = 'maskrcnn_focalnet_s_3x.py'

model = dict(backbone=dict(focal_levels=(2, 2, 2, 2)))
