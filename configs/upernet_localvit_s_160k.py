# UPerNet, LocalViT-S (on DeiT), 160k iterations.
# No published number: the paper (LocalViT, arXiv 2104.05707) ends at ImageNet.
# One resolution (stride 16): Feature2Pyramid makes strides 4 to 32 of four blocks' maps.
_base_ = [
    '_base_/models/upernet.py',
    '_base_/datasets/ade20k.py',
    '_base_/schedules/160k_localvit.py',
]

model = dict(
    backbone=dict(
        type='LocalViT',
        embed_dim=384,
        num_heads=8,
        reduction=384,
        drop_path_rate=0.1,
        # ImageNet weights: --weights auto
        init_cfg=dict(type='Pretrained', checkpoint=None)),
    neck=dict(type='Feature2Pyramid', embed_dim=384),
    decode_head=dict(in_channels=[384, 384, 384, 384]),
    auxiliary_head=dict(in_channels=384))
