# UPerNet, FocalNet-B (two focal levels, srf), 160k iterations.
# Published: 50.2 mIoU, 51.1 multi-scale; 124 M parameters, 1180 GFLOPs at 2048x512.
# (Focal Modulation Networks, arXiv 2203.11926: results table in the authors' README.)
_base_ = [
    '_base_/models/upernet.py',
    '_base_/datasets/ade20k.py',
    '_base_/schedules/160k.py',
]

model = dict(
    backbone=dict(
        type='FocalNet',
        embed_dim=128,
        depths=(2, 2, 18, 2),
        focal_levels=(2, 2, 2, 2),
        focal_windows=(9, 9, 9, 9),
        drop_path_rate=0.3,
        # ImageNet weights: --cfg-options model.backbone.init_cfg.checkpoint=FILE
        init_cfg=dict(type='Pretrained', checkpoint=None)),
    decode_head=dict(in_channels=[128, 256, 512, 1024]),
    auxiliary_head=dict(in_channels=512))
