# DINO with five scales, FocalNet-L (four focal levels), 36 epochs.
# Published: 63.5 box AP after pre-training on Objects365, tested at high resolution
# (dino_focalnet_l_5scale_36e_test1200.py; 0.3 lower at 800/1333).
# (Focal Modulation Networks, arXiv 2203.11926: results table in the authors' README.)
_base_ = 'dino_focalnet_l_5scale_12e.py'

train_cfg = dict(max_epochs=36)
param_scheduler = [
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=36, milestones=[33], gamma=0.1),
]
