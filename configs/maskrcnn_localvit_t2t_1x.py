# Mask R-CNN, LocalViT on T2T-ViT-7, 1x.
# No published number: the paper (LocalViT, arXiv 2104.05707) ends at ImageNet.
# One resolution (stride 16): Feature2Pyramid makes strides 4 to 32 of four blocks' maps.
_base_ = [
    '_base_/models/maskrcnn.py',
    '_base_/datasets/coco_instance.py',
    '_base_/schedules/1x_localvit.py',
]

model = dict(
    backbone=dict(
        type='LocalViTT2T',
        drop_path_rate=0.1,
        # No ImageNet weights were published
        init_cfg=dict(type='Pretrained', checkpoint=None)),
    neck=[
        dict(type='mmseg.Feature2Pyramid', embed_dim=256),
        dict(
            type='FPN',
            in_channels=[256, 256, 256, 256],
            out_channels=256,
            num_outs=5),
    ])
