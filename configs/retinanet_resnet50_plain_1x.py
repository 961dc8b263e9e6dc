# RetinaNet, ResNet-50, plain 1x.
# A control: retinanet_container_light_1x's recipe.
# Published: 36.5 box AP (Container, arXiv 2106.01401: abstract), which mmdet
# prints for this schedule and augmentation with SGD in float32.
_base_ = [
    '_base_/models/retinanet.py',
    '_base_/datasets/coco_detection_plain.py',
    '_base_/schedules/1x_plain.py',
]

model = dict(
    backbone=dict(
        type='ResNet',
        depth=50,
        out_indices=(1, 2, 3),
        frozen_stages=1,
        norm_cfg=dict(type='BN', requires_grad=True),
        norm_eval=True,
        # Frozen parts make sense from ImageNet weights only: these are fetched, or give a file:
        # --weights FILE
        init_cfg=dict(
            type='Pretrained',
            checkpoint='https://download.pytorch.org/models/resnet50-0676ba61.pth')),
    neck=dict(in_channels=[512, 1024, 2048]))
