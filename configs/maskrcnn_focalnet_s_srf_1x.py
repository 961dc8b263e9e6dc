# Mask R-CNN, FocalNet-S (two focal levels, srf), 1x.
# Published: 48.0 box AP, 42.7 mask AP; 70.8 M parameters, 356 GFLOPs at 1280x800.
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
        focal_levels=(2, 2, 2, 2),
        focal_windows=(9, 9, 9, 9),
        drop_path_rate=0.2,
        # ImageNet weights: --cfg-options model.backbone.init_cfg.checkpoint=FILE
        init_cfg=dict(type='Pretrained', checkpoint=None)),
    neck=dict(in_channels=[96, 192, 384, 768]))
