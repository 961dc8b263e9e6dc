# DETR, ResNet-50, 50 epochs.
# A control: detr_container_light_50e's recipe.
# Published: 32.3 box AP (Container, arXiv 2106.01401: abstract).
_base_ = [
    '_base_/models/detr.py',
    '_base_/datasets/coco_detection_640_800.py',
    '_base_/schedules/detr_50e.py',
]

model = dict(
    backbone=dict(
        type='ResNet',
        depth=50,
        out_indices=(3, ),
        frozen_stages=1,
        norm_cfg=dict(type='BN', requires_grad=False),
        norm_eval=True,
        # Frozen parts make sense from ImageNet weights only: these are fetched, or give a file:
        # --weights FILE
        init_cfg=dict(
            type='Pretrained',
            checkpoint='https://download.pytorch.org/models/resnet50-0676ba61.pth')),
    neck=dict(in_channels=[2048]))
