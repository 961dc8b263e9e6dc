# Mask R-CNN, Swin-B, 3x.
# A control: FocalNet-B's recipe.
# Published: 48.5 box AP (as cited by Focal Modulation Networks, arXiv 2203.11926).
_base_ = [
    '_base_/models/maskrcnn.py',
    '_base_/datasets/coco_instance.py',
    '_base_/schedules/3x.py',
]

model = dict(
    backbone=dict(
        # ImageNet weights: --weights FILE_OR_URL
        type='SwinTransformer',
        embed_dims=128,
        depths=(2, 2, 18, 2),
        num_heads=(4, 8, 16, 32),
        window_size=7,
        drop_path_rate=0.5,
        convert_weights=True),
    neck=dict(in_channels=[128, 256, 512, 1024]))
