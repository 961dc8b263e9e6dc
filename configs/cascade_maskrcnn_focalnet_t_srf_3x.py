# Cascade Mask R-CNN, FocalNet-T (two focal levels, srf), 3x.
# No published number; the lrf model's is in cascade_maskrcnn_focalnet_t_3x.py.
_base_ = 'cascade_maskrcnn_focalnet_t_3x.py'

model = dict(backbone=dict(focal_levels=(2, 2, 2, 2)))
