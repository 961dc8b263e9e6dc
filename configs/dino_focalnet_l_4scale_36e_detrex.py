# DINO with four scales, FocalNet-L (three focal levels), 36 epochs, as detrex trained it.
# Published: 58.3 box AP, from ImageNet-22k weights. (detrex's model zoo, which has the file:
# dino_focal_large_3level_4scale_36ep.)
_base_ = 'dino_focalnet_l_4scale_12e_detrex.py'

train_cfg = dict(max_epochs=36)
param_scheduler = [
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=36, milestones=[30], gamma=0.1),
]
