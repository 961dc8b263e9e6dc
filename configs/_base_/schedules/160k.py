# 160k iterations of AdamW for segmentation: FocalNet's recipe, which is Swin Transformer's.
# In float32, as there; tools/train.py --amp trains in mixed precision.
train_cfg = dict(type='IterBasedTrainLoop', max_iters=160000, val_interval=16000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=6e-5, betas=(0.9, 0.999), weight_decay=0.01),
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

# The two multiply. The decay begins at iteration 0, under the warm-up, as it did in mmseg 0.x that
# the authors used (mmseg 1.x's Swin configs begin it after the warm-up, at most 1 % higher).
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', power=1.0, eta_min=0., by_epoch=False, begin=0, end=160000),
]

# The rate above is for 8 GPUs x 2 images.
auto_scale_lr = dict(enable=False, base_batch_size=16)
