# A linear head on the last map of a frozen LocalViT on Swin-T, 40k iterations.
# No published number: an experiment of ours, to compare features alone.
_base_ = [
    '_base_/models/linear.py',
    '_base_/datasets/ade20k.py',
    '_base_/schedules/40k.py',
]

custom_imports = dict(imports=['backbones', 'downstream', 'downstream.heads.linear'])
model = dict(
    backbone=dict(
        type='LocalViTSwin',
        out_indices=(3, ),
        # ImageNet weights: --weights auto (docs/weights.md)
        init_cfg=dict(type='Pretrained', checkpoint=None)),
    decode_head=dict(in_channels=768))
