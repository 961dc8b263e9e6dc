# Mask R-CNN, ResNet-50, 1x.
# A control: FocalNet's and LocalViT's recipe (maskrcnn_resnet50_plain_1x has CONTAINER's).
_base_ = [
    '_base_/models/maskrcnn.py',
    '_base_/datasets/coco_instance.py',
    '_base_/schedules/1x.py',
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
    neck=dict(in_channels=[256, 512, 1024, 2048]))
