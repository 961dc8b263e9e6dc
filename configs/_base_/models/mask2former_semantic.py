# Mask2Former for semantic segmentation, in mmseg. An experiment adds the backbone and the head's
# in_channels.
_base_ = 'mask2former.py'

num_classes = 150
model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size=(512, 512)),
    decode_head=dict(
        num_classes=num_classes,
        align_corners=False,
        loss_cls=dict(
            class_weight=[1.0] * num_classes + [_base_.no_object], **_base_.loss_cls),
        train_cfg=_base_.matching,
        **_base_.head),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'))
