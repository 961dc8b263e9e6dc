# RetinaNet, FocalNet-T (three focal levels, lrf), 1x.
# No published number (Focal Modulation Networks, arXiv 2203.11926, has no such experiment).
_base_ = [
    '_base_/models/retinanet.py',
    '_base_/datasets/coco_detection.py',
    '_base_/schedules/1x.py',
]

model = dict(
    backbone=dict(
        type='FocalNet',
        embed_dim=96,
        depths=(2, 2, 6, 2),
        focal_levels=(3, 3, 3, 3),
        focal_windows=(9, 9, 9, 9),
        out_indices=(1, 2, 3),
        drop_path_rate=0.1,
        # ImageNet weights: --weights auto
        init_cfg=dict(type='Pretrained', checkpoint=None)),
    neck=dict(in_channels=[192, 384, 768]))
