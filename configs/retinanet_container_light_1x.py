# RetinaNet, CONTAINER-Light, 1x.
# Published: 43.8 box AP.
# (Container, arXiv 2106.01401: abstract. The detection code was never released: this schedule is
# the one customary for such backbones.)
_base_ = [
    '_base_/models/retinanet.py',
    '_base_/datasets/coco_detection.py',
    '_base_/schedules/1x.py',
]

model = dict(
    backbone=dict(
        type='Container',
        affinity=('static', 'static', 'static', 'mixed'),
        out_indices=(1, 2, 3),
        drop_path_rate=0.1,
        # ImageNet weights: --cfg-options model.backbone.init_cfg.checkpoint=FILE
        init_cfg=dict(type='Pretrained', checkpoint=None)),
    neck=dict(in_channels=[128, 320, 512]))
