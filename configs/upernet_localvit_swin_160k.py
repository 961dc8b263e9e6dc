# UPerNet, LocalViT on Swin-T, 160k iterations.
# No published number: the paper (LocalViT, arXiv 2104.05707) ends at ImageNet.
_base_ = [
    '_base_/models/upernet.py',
    '_base_/datasets/ade20k.py',
    '_base_/schedules/160k_localvit.py',
]

model = dict(
    backbone=dict(
        type='LocalViTSwin',
        drop_path_rate=0.3,
        # ImageNet weights: --weights auto
        init_cfg=dict(type='Pretrained', checkpoint=None)),
    decode_head=dict(in_channels=[96, 192, 384, 768]),
    auxiliary_head=dict(in_channels=384))
