# UPerNet, Swin-T, 160k iterations.
# A control: FocalNet-T's recipe.
# (mmdet's class, as it reads the authors' weight files.)
_base_ = [
    '_base_/models/upernet.py',
    '_base_/datasets/ade20k.py',
    '_base_/schedules/160k.py',
]

model = dict(
    backbone=dict(
        # ImageNet weights: --weights FILE_OR_URL
        type='mmdet.SwinTransformer',
        embed_dims=96,
        depths=(2, 2, 6, 2),
        num_heads=(3, 6, 12, 24),
        window_size=7,
        drop_path_rate=0.3,
        convert_weights=True),
    decode_head=dict(in_channels=[96, 192, 384, 768]),
    auxiliary_head=dict(in_channels=384))
