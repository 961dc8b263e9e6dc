# A linear classifier of a frozen backbone's last map, for ADE20K's 150 classes. An experiment adds
# the backbone, which gives that map alone, and the head's in_channels.
model = dict(
    type='FrozenEncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        size=(512, 512),  # of the crops: smaller images are padded to it in training
        pad_val=0,
        seg_pad_val=255),
    decode_head=dict(
        type='LinearHead',
        in_index=0,
        dropout_ratio=0.,
        num_classes=150,
        norm_cfg=dict(type='SyncBN', requires_grad=True),
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0)),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'))
