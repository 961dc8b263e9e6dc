# ATSS, FocalNet-T (three focal levels, lrf), 3x.
# Published: 49.6 box AP; 37.2 M parameters, 220 GFLOPs at 1280x800.
# (Focal Modulation Networks, arXiv 2203.11926: results table in the authors' README.)
_base_ = [
    '_base_/models/atss.py',
    '_base_/datasets/coco_detection.py',
    '_base_/schedules/3x.py',
]

model = dict(
    backbone=dict(
        type='FocalNet',
        embed_dim=96,
        depths=(2, 2, 6, 2),
        focal_levels=(3, 3, 3, 3),
        focal_windows=(11, 9, 9, 7),
        out_indices=(1, 2, 3),
        drop_path_rate=0.3,
        # ImageNet weights: --weights auto
        init_cfg=dict(type='Pretrained', checkpoint=None)),
    neck=dict(in_channels=[192, 384, 768]))
