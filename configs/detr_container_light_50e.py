# DETR, CONTAINER-Light, 50 epochs.
# Published: 38.9 box AP.
# (Container, arXiv 2106.01401: abstract.) The detection code was never released: this is the public
# recipe for DETR with such backbones, PVT's (step at epoch 33, short side of 640 to 800, no crop).
_base_ = [
    '_base_/models/detr.py',
    '_base_/datasets/coco_detection_640_800.py',
    '_base_/schedules/detr_50e.py',
]

model = dict(
    backbone=dict(
        type='Container',
        affinity=('static', 'static', 'static', 'mixed'),
        out_indices=(3, ),
        drop_path_rate=0.1,
        # ImageNet weights: --weights auto (docs/weights.md)
        init_cfg=dict(type='Pretrained', checkpoint=None)),
    neck=dict(in_channels=[512]))
