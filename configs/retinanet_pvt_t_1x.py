# RetinaNet, PVT-Tiny, 1x.
# A control: FocalNet's and LocalViT's recipe (retinanet_pvt_t_plain_1x has CONTAINER's).
_base_ = [
    '_base_/models/retinanet.py',
    '_base_/datasets/coco_detection.py',
    '_base_/schedules/1x.py',
]

model = dict(
    backbone=dict(
        # ImageNet weights: --weights FILE_OR_URL
        type='PyramidVisionTransformer',
        num_layers=(2, 2, 2, 2),
        out_indices=(1, 2, 3),
        drop_path_rate=0.1),
    neck=dict(in_channels=[128, 320, 512]))
