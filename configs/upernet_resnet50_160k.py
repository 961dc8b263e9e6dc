# UPerNet, ResNet-50, 160k iterations.
# A control: the recipe of the other backbones here.
_base_ = [
    '_base_/models/upernet.py',
    '_base_/datasets/ade20k.py',
    '_base_/schedules/160k.py',
]

model = dict(
    backbone=dict(
        type='ResNet',
        depth=50,
        frozen_stages=1,
        norm_cfg=dict(type='BN', requires_grad=True),
        norm_eval=True,
        # Frozen parts make sense from ImageNet weights only: these are fetched, or give a file:
        # --weights FILE
        init_cfg=dict(
            type='Pretrained',
            checkpoint='https://download.pytorch.org/models/resnet50-0676ba61.pth')),
    decode_head=dict(in_channels=[256, 512, 1024, 2048]),
    auxiliary_head=dict(in_channels=1024))
