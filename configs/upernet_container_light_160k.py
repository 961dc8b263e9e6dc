# UPerNet, CONTAINER-Light, 160k iterations.
# No published number: the paper (Container, arXiv 2106.01401) has no segmentation experiment.
_base_ = [
    '_base_/models/upernet.py',
    '_base_/datasets/ade20k.py',
    '_base_/schedules/160k.py',
]

model = dict(
    backbone=dict(
        type='Container',
        affinity=('static', 'static', 'static', 'mixed'),
        drop_path_rate=0.1,
        # ImageNet weights: --weights auto (docs/weights.md)
        init_cfg=dict(type='Pretrained', checkpoint=None)),
    decode_head=dict(in_channels=[64, 128, 320, 512]),
    auxiliary_head=dict(in_channels=320))
