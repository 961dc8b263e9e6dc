# Mask R-CNN, PVT-Tiny, 1x.
# A control: FocalNet's and LocalViT's recipe (maskrcnn_pvt_t_plain_1x has CONTAINER's).
_base_ = [
    '_base_/models/maskrcnn.py',
    '_base_/datasets/coco_instance.py',
    '_base_/schedules/1x.py',
]

model = dict(
    backbone=dict(
        # ImageNet weights: --weights FILE_OR_URL
        type='PyramidVisionTransformer',
        num_layers=(2, 2, 2, 2),
        drop_path_rate=0.1),
    neck=dict(in_channels=[64, 128, 320, 512]))
