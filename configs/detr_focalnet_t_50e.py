# DETR, FocalNet-T (three focal levels, lrf), 50 epochs.
# No published number (Focal Modulation Networks, arXiv 2203.11926, has no such experiment):
# detr_container_light_50e's recipe.
_base_ = [
    '_base_/models/detr.py',
    '_base_/datasets/coco_detection_640_800.py',
    '_base_/schedules/detr_50e.py',
]

model = dict(
    backbone=dict(
        type='FocalNet',
        embed_dim=96,
        depths=(2, 2, 6, 2),
        focal_levels=(3, 3, 3, 3),
        focal_windows=(9, 9, 9, 9),
        out_indices=(3, ),
        drop_path_rate=0.1,
        # ImageNet weights: --weights auto
        init_cfg=dict(type='Pretrained', checkpoint=None)),
    neck=dict(in_channels=[768]))
