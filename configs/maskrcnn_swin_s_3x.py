# Mask R-CNN, Swin-S, 3x.
# A control: FocalNet-S's recipe, but with the drop path of Swin's own 3x.
_base_ = [
    '_base_/models/maskrcnn.py',
    '_base_/datasets/coco_instance.py',
    '_base_/schedules/3x.py',
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
