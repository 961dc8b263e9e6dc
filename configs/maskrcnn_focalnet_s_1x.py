# Mask R-CNN, FocalNet-S (three focal levels, lrf), 1x.
# Published: 48.3 box AP, 43.1 mask AP; 72.3 M parameters, 365 GFLOPs at 1280x800.
# (Focal Modulation Networks, arXiv 2203.11926: results table in the authors' README.)
_base_ = [
    '_base_/models/maskrcnn.py',
    '_base_/datasets/coco_instance.py',
    '_base_/schedules/1x.py',
]

model = dict(
    backbone=dict(
        type='FocalNet',
        embed_dim=96,
        depths=(2, 2, 18, 2),
        focal_levels=(3, 3, 3, 3),
        focal_windows=(9, 9, 9, 9),
        drop_path_rate=0.2,
        # ImageNet weights: --weights auto
        init_cfg=dict(type='Pretrained', checkpoint=None)),
    neck=dict(in_channels=[96, 192, 384, 768]))
