# Mask R-CNN, CONTAINER-Light, 1x.
# Published: 45.1 box AP, 41.3 mask AP.
# (Container, arXiv 2106.01401: abstract. The detection code was never released: this schedule is
# the one customary for such backbones.)
_base_ = [
    '_base_/models/maskrcnn.py',
    '_base_/datasets/coco_instance.py',
    '_base_/schedules/1x.py',
]

model = dict(
    backbone=dict(
        type='Container',
        affinity=('static', 'static', 'static', 'mixed'),
        drop_path_rate=0.1,
        # ImageNet weights: --cfg-options model.backbone.init_cfg.checkpoint=FILE
        init_cfg=dict(type='Pretrained', checkpoint=None)),
    neck=dict(in_channels=[64, 128, 320, 512]))
