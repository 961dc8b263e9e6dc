# 12 epochs with the steps of mmdet's baselines, at 8 and 11; all else as in 1x.
_base_ = '1x.py'

param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=12, milestones=[8, 11], gamma=0.1),
]
