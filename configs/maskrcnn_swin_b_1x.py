# Mask R-CNN, Swin-B, 1x.
# A control: FocalNet-B's recipe, with steps at epochs 9 and 11; Swin's own 1x has them at 8 and 11.
# Published: 46.9 box AP (as cited by Focal Modulation Networks, arXiv 2203.11926).
_base_ = [
    '_base_/models/maskrcnn.py',
    '_base_/datasets/coco_instance.py',
    '_base_/schedules/1x.py',
]

model = dict(
    backbone=dict(
        # ImageNet weights: --weights FILE_OR_URL
        type='SwinTransformer',
        embed_dims=128,
        depths=(2, 2, 18, 2),
        num_heads=(4, 8, 16, 32),
        window_size=7,
        drop_path_rate=0.3,
        convert_weights=True),
    neck=dict(in_channels=[128, 256, 512, 1024]))
