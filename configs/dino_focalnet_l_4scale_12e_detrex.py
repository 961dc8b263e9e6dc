# DINO with four scales, FocalNet-L (three focal levels), 12 epochs, as detrex trained it.
# Published: 57.5 box AP, from ImageNet-22k weights. (detrex's model zoo, which has the file:
# dino_focal_large_lrf_384_4scale_12ep.)
_base_ = 'dino_focalnet_l_4scale_12e.py'

# Weights of the authors' DINO give wrong numbers here, and the other way round: the position
# encoding is no tensor.
model = dict(
    positional_encoding=dict(temperature=10000, offset=-0.5),
    bbox_head=dict(type='DINOHead'),  # prediction layers of its own for each decoder layer
    dn_cfg=dict(box_noise_scale=1.0))
