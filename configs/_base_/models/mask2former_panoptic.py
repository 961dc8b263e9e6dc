# Mask2Former for panoptic segmentation, in mmdet: things come first among the classes. An
# experiment adds the backbone and the head's in_channels.
_base_ = 'mask2former.py'

num_things_classes = 80
num_stuff_classes = 53
model = dict(
    type='Mask2Former',
    data_preprocessor=dict(
        type='DetDataPreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_size_divisor=32,
        pad_mask=True,
        mask_pad_value=0,
        pad_seg=True,
        seg_pad_value=255),
    panoptic_head=dict(
        num_things_classes=num_things_classes,
        num_stuff_classes=num_stuff_classes,
        loss_cls=dict(
            class_weight=[1.0] * (num_things_classes + num_stuff_classes) + [_base_.no_object],
            **_base_.loss_cls),
        **_base_.head),
    panoptic_fusion_head=dict(
        type='MaskFormerFusionHead',
        num_things_classes=num_things_classes,
        num_stuff_classes=num_stuff_classes),
    train_cfg=_base_.matching,
    test_cfg=dict(
        panoptic_on=True,
        instance_on=True,
        semantic_on=False,
        max_per_image=100,  # instances
        iou_thr=0.8,  # of a mask, what must be left of it beside the others
        filter_low_score=True))
