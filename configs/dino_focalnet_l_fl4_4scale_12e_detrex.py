# DINO with four scales, FocalNet-L (four focal levels), 12 epochs, as detrex trained it.
# Published: 58.0 box AP, from ImageNet-22k weights. (detrex's model zoo, which has the file:
# dino_focal_large_lrf_384_fl4_4scale_12ep.)
_base_ = 'dino_focalnet_l_4scale_12e_detrex.py'

model = dict(backbone=dict(focal_levels=(4, 4, 4, 4), focal_windows=(3, 3, 3, 3)))
