# Mask R-CNN, CONTAINER-Light, 1x.
# Published: 45.1 box AP, 41.3 mask AP.
# (Container, arXiv 2106.01401: abstract.) The detection code was never released. What the paper
# compares with, 38.2 and 34.7 with ResNet-50, is what mmdet prints for its plain recipe: one scale
# of 1333 x 800, flips, steps at epochs 8 and 11. So this is that recipe, with the optimizer
# customary for such backbones (FocalNet's and Swin's).
_base_ = [
    '_base_/models/maskrcnn.py',
    '_base_/datasets/coco_instance_plain.py',
    '_base_/schedules/1x_plain.py',
]

model = dict(
    backbone=dict(
        type='Container',
        affinity=('static', 'static', 'static', 'mixed'),
        drop_path_rate=0.1,
        # ImageNet weights: --weights auto (docs/weights.md)
        init_cfg=dict(type='Pretrained', checkpoint=None)),
    neck=dict(in_channels=[64, 128, 320, 512]))
