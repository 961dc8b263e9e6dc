# Mask R-CNN, FocalNet-T (two focal levels, srf), 1x.
# Published: 45.9 box AP, 41.3 mask AP; 48.6 M parameters, 267 GFLOPs at 1280x800.
# (Focal Modulation Networks, arXiv 2203.11926: results table in the authors' README.)
_base_ = 'maskrcnn_focalnet_t_1x.py'

model = dict(backbone=dict(focal_levels=(2, 2, 2, 2)))
