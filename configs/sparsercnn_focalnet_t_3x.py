# Sparse R-CNN, FocalNet-T (three focal levels, lrf), 3x.
# Published: 49.9 box AP; 111.2 M parameters, 178 GFLOPs at 1280x800.
# (Focal Modulation Networks, arXiv 2203.11926: results table in the authors' README.)
_base_ = [
    '_base_/models/sparsercnn.py',
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
        drop_path_rate=0.3,
        # ImageNet weights: --weights auto
        init_cfg=dict(type='Pretrained', checkpoint=None)),
    neck=dict(in_channels=[96, 192, 384, 768]))

# Sparse R-CNN's own optimizer, in float32 as there.
optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=2.5e-5, weight_decay=1e-4),
    clip_grad=dict(max_norm=1., norm_type=2))
