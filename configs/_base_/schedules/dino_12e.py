# 12 epochs for DINO; all else as for DETR.
_base_ = 'detr_50e.py'

train_cfg = dict(max_epochs=12)
param_scheduler = [
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=12, milestones=[11], gamma=0.1),
]
