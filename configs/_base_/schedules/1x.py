# 12 epochs of AdamW for detection: FocalNet's recipe, which is Swin Transformer's.
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=12, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='AmpOptimWrapper',
    loss_scale='dynamic',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
    # A key is looked for anywhere in a parameter's name, as the authors' releases do. So a
    # normalisation that is called otherwise (the heads' `bn`) is decayed.
    paramwise_cfg=dict(
        custom_keys={
            'cls_token': dict(decay_mult=0.),
            'pos_embed': dict(decay_mult=0.),  # and absolute_pos_embed
            'pos_embed.': dict(decay_mult=1.),  # CONTAINER's convolutions of that name
            'patch_pos': dict(decay_mult=0.),
            'pixel_pos': dict(decay_mult=0.),
            'relative_position_bias_table': dict(decay_mult=0.),
            'norm': dict(decay_mult=0.),
        }))

param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=12, milestones=[9, 11], gamma=0.1),
]

# The rate above is for 8 GPUs x 2 images.
auto_scale_lr = dict(enable=False, base_batch_size=16)
