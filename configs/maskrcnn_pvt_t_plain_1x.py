# Mask R-CNN, PVT-Tiny, plain 1x.
# A control: maskrcnn_container_light_1x's recipe.
_base_ = [
    '_base_/models/maskrcnn.py',
    '_base_/datasets/coco_instance_plain.py',
    '_base_/schedules/1x_plain.py',
]

model = dict(
    backbone=dict(
        # ImageNet weights: --weights FILE_OR_URL
        type='PyramidVisionTransformer',
        num_layers=(2, 2, 2, 2),
        drop_path_rate=0.1),
    neck=dict(in_channels=[64, 128, 320, 512]))
