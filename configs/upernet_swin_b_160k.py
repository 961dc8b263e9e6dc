# UPerNet, Swin-B, 160k iterations.
# A control: FocalNet-B's recipe.
# (mmdet's class, as it reads the authors' weight files.)
# Published: 48.1 mIoU, 49.7 multi-scale (as cited by Focal Modulation Networks, arXiv 2203.11926).
_base_ = [
    '_base_/models/upernet.py',
    '_base_/datasets/ade20k.py',
    '_base_/schedules/160k.py',
]

model = dict(
    backbone=dict(
        # ImageNet weights: --weights FILE_OR_URL
        type='mmdet.SwinTransformer',
        embed_dims=128,
        depths=(2, 2, 18, 2),
        num_heads=(4, 8, 16, 32),
        window_size=7,
        drop_path_rate=0.3,
        convert_weights=True),
    decode_head=dict(in_channels=[128, 256, 512, 1024]),
    auxiliary_head=dict(in_channels=512))
