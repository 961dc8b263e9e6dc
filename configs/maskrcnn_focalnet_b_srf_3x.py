# Mask R-CNN, FocalNet-B (two focal levels, srf), 3x.
# Published: 49.6 box AP, 44.1 mask AP; 109.4 M parameters, 496 GFLOPs at 1280x800.
# (Focal Modulation Networks, arXiv 2203.11926: results table in the authors' README.)
_base_ = 'maskrcnn_focalnet_b_3x.py'

model = dict(backbone=dict(focal_levels=(2, 2, 2, 2)))
