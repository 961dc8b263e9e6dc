# A linear head on the last map of a frozen FocalNet-T (three focal levels, lrf), 40k iterations.
# No published number: an experiment of ours, to compare features alone.
_base_ = [
    '_base_/models/linear.py',
    '_base_/datasets/ade20k.py',
    '_base_/schedules/40k.py',
]

custom_imports = dict(imports=['backbones', 'downstream', 'downstream.heads.linear'])
model = dict(
    backbone=dict(
        type='FocalNet',
        embed_dim=96,
        depths=(2, 2, 6, 2),
        focal_levels=(3, 3, 3, 3),
        focal_windows=(9, 9, 9, 9),
        out_indices=(3, ),
        drop_path_rate=0.,
        # ImageNet weights: --weights auto (docs/weights.md)
        init_cfg=dict(type='Pretrained', checkpoint=None)),
    decode_head=dict(in_channels=768))
