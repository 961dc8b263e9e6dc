# Mask R-CNN, LocalViT on TNT, 1x.
# No published number: the paper (LocalViT, arXiv 2104.05707) ends at ImageNet.
# One resolution (stride 16): Feature2Pyramid makes strides 4 to 32 of four blocks' maps.
_base_ = [
    '_base_/models/maskrcnn.py',
    '_base_/datasets/coco_instance.py',
    '_base_/schedules/1x_localvit.py',
]

model = dict(
    backbone=dict(
        type='LocalViTTNT',
        drop_path_rate=0.1,
        # ImageNet weights: --weights auto
        init_cfg=dict(type='Pretrained', checkpoint=None)),
    neck=[
        dict(type='mmseg.Feature2Pyramid', embed_dim=192),
        dict(
            type='FPN',
            in_channels=[192, 192, 192, 192],
            out_channels=256,
            num_outs=5),
    ])
