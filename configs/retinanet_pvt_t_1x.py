# RetinaNet, PVT-Tiny, 1x.
# A control: the recipe of the other backbones here.
_base_ = [
    '_base_/models/retinanet.py',
    '_base_/datasets/coco_detection.py',
    '_base_/schedules/1x.py',
]

model = dict(
    backbone=dict(
        # ImageNet weights: --cfg-options model.backbone.init_cfg.type=Pretrained \
        #     model.backbone.init_cfg.checkpoint=FILE
        type='PyramidVisionTransformer',
        num_layers=(2, 2, 2, 2),
        out_indices=(1, 2, 3),
        drop_path_rate=0.1),
    neck=dict(in_channels=[128, 320, 512]))
