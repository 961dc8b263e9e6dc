# RetinaNet, LocalViT on PVT-Tiny, 1x.
# No published number: the paper (LocalViT, arXiv 2104.05707) ends at ImageNet.
_base_ = [
    '_base_/models/retinanet.py',
    '_base_/datasets/coco_detection.py',
    '_base_/schedules/1x_localvit.py',
]

model = dict(
    backbone=dict(
        type='LocalViTPVT',
        out_indices=(1, 2, 3),
        drop_path_rate=0.1,
        # ImageNet weights: --weights auto
        init_cfg=dict(type='Pretrained', checkpoint=None)),
    neck=dict(in_channels=[128, 320, 512]))
