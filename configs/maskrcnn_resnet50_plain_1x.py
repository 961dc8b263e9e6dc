# Mask R-CNN, ResNet-50, plain 1x.
# A control: maskrcnn_container_light_1x's recipe.
# Published: 38.2 box AP, 34.7 mask AP (Container, arXiv 2106.01401: abstract), which mmdet
# prints for this schedule and augmentation with SGD in float32.
_base_ = [
    '_base_/models/maskrcnn.py',
    '_base_/datasets/coco_instance_plain.py',
    '_base_/schedules/1x_plain.py',
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
