# RetinaNet, CONTAINER-Light, 1x.
# Published: 43.8 box AP.
# (Container, arXiv 2106.01401: abstract.) The detection code was never released. What the paper
# compares with, 36.5 with ResNet-50, is what mmdet prints for its plain recipe: one scale of
# 1333 x 800, flips, steps at epochs 8 and 11. So this is that recipe, with the optimizer customary
# for such backbones (FocalNet's and Swin's).
_base_ = [
    '_base_/models/retinanet.py',
    '_base_/datasets/coco_detection_plain.py',
    '_base_/schedules/1x_plain.py',
]

model = dict(
    backbone=dict(
        type='Container',
        affinity=('static', 'static', 'static', 'mixed'),
        out_indices=(1, 2, 3),
        drop_path_rate=0.1,
        # ImageNet weights: --weights auto (docs/weights.md)
        init_cfg=dict(type='Pretrained', checkpoint=None)),
    neck=dict(in_channels=[128, 320, 512]))
