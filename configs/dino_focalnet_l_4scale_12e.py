# DINO with four scales, FocalNet-L (three focal levels), 12 epochs.
# No published number of this schedule alone, and no released detector: the authors pre-train on
# Objects365 first. (Focal Modulation Networks, arXiv 2203.11926: released config.)
_base_ = [
    '_base_/models/dino.py',
    '_base_/datasets/coco_dino.py',
    '_base_/schedules/dino_12e.py',
]

model = dict(
    backbone=dict(
        type='FocalNet',
        embed_dim=192,
        depths=(2, 2, 18, 2),
        focal_levels=(3, 3, 3, 3),
        focal_windows=(5, 5, 5, 5),
        use_conv_embed=True,
        use_postln=True,
        use_layerscale=True,
        use_checkpoint=True,
        out_indices=(1, 2, 3),
        drop_path_rate=0.3,
        # ImageNet weights: --weights auto
        init_cfg=dict(type='Pretrained', checkpoint=None)),
    neck=dict(in_channels=[384, 768, 1536]))
