# RetinaNet, Swin-T, 1x.
# A control: the recipe of retinanet_localvit_swin_1x and retinanet_focalnet_t_1x.
_base_ = [
    '_base_/models/retinanet.py',
    '_base_/datasets/coco_detection.py',
    '_base_/schedules/1x.py',
]

model = dict(
    backbone=dict(
        # ImageNet weights: --weights FILE_OR_URL
        type='SwinTransformer',
        embed_dims=96,
        depths=(2, 2, 6, 2),
        num_heads=(3, 6, 12, 24),
        window_size=7,
        out_indices=(1, 2, 3),
        drop_path_rate=0.1,
        convert_weights=True),
    neck=dict(in_channels=[192, 384, 768]))
