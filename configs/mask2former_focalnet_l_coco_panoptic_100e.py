# Mask2Former for panoptic segmentation of COCO, FocalNet-L (three focal levels), 100 epochs.
# Published: 57.9 PQ. (Focal Modulation Networks, arXiv 2203.11926, abstract.)
# Its config was not released: this is Mask2Former's own recipe for Swin-L (large scale jitter, 200
# queries, 100 epochs, mixed precision), and which of the two L is our choice.
_base_ = [
    '_base_/models/mask2former_panoptic.py',
    '_base_/datasets/coco_panoptic.py',
    '_base_/schedules/mask2former_100e.py',
]

model = dict(
    data_preprocessor=dict(
        batch_augments=[
            dict(
                type='BatchFixedSizePad',
                size=_base_.image_size,
                img_pad_value=0,
                pad_mask=True,
                mask_pad_value=0,
                pad_seg=True,
                seg_pad_value=255),
        ]),
    backbone=dict(
        type='FocalNet',
        embed_dim=192,
        depths=(2, 2, 18, 2),
        focal_levels=(3, 3, 3, 3),
        focal_windows=(5, 5, 5, 5),
        use_conv_embed=True,
        use_postln=True,
        use_layerscale=True,
        use_checkpoint=True,
        drop_path_rate=0.3,
        # ImageNet weights: --weights auto
        init_cfg=dict(type='Pretrained', checkpoint=None)),
    panoptic_head=dict(num_queries=200, in_channels=[192, 384, 768, 1536]))

# Boxes and masks of the things too, each query as an instance.
val_evaluator = [
    _base_.val_evaluator,
    dict(
        type='CocoMetric',
        ann_file=_base_.data_root + '/annotations/instances_val2017.json',
        metric=['bbox', 'segm']),
]
test_evaluator = val_evaluator
