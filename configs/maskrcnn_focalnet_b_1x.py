# Mask R-CNN, FocalNet-B (three focal levels, lrf), 1x.
# Published: 49.0 box AP, 43.5 mask AP; 111.4 M parameters, 507 GFLOPs at 1280x800.
# (Focal Modulation Networks, arXiv 2203.11926: results table in the authors' README.)
_base_ = [
    '_base_/models/maskrcnn.py',
    '_base_/datasets/coco_instance.py',
    '_base_/schedules/1x.py',
]

model = dict(
    backbone=dict(
        type='FocalNet',
        embed_dim=128,
        depths=(2, 2, 18, 2),
        focal_levels=(3, 3, 3, 3),
        focal_windows=(9, 9, 9, 9),
        drop_path_rate=0.3,
        # ImageNet weights: --weights auto
        init_cfg=dict(type='Pretrained', checkpoint=None)),
    neck=dict(in_channels=[128, 256, 512, 1024]))
