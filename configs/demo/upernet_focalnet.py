# UPerNet with a small FocalNet on the generated data set, from scratch (`make demo`).
_base_ = [
    '../_base_/demo_focalnet.py',
    '../_base_/models/upernet.py',
    '../_base_/datasets/demo_ade20k.py',
    '../_base_/schedules/demo.py',
]

model = dict(
    data_preprocessor=dict(size=(160, 160)),
    backbone=_base_.focalnet,
    decode_head=dict(in_channels=[32, 64, 128, 256], channels=64, num_classes=7),
    auxiliary_head=dict(in_channels=128, channels=64, num_classes=7))
train_cfg = dict(max_epochs=10, val_interval=2)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='CosineAnnealingLR', by_epoch=True, convert_to_iter_based=True, begin=0, end=10,
         T_max=10, eta_min=0.),
]
