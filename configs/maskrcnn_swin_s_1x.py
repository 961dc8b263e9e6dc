# Mask R-CNN, Swin-S, 1x.
# A control: FocalNet-S's recipe, with steps at epochs 9 and 11; Swin's own 1x has them at 8 and 11.
_base_ = [
    '_base_/models/maskrcnn.py',
    '_base_/datasets/coco_instance.py',
    '_base_/schedules/1x.py',
]

model = dict(
    backbone=dict(
        # ImageNet weights: --weights FILE_OR_URL
        type='SwinTransformer',
        embed_dims=96,
        depths=(2, 2, 18, 2),
        num_heads=(3, 6, 12, 24),
        window_size=7,
        drop_path_rate=0.2,
        convert_weights=True),
    neck=dict(in_channels=[96, 192, 384, 768]))
