# Minutes on two cores: AdamW from scratch, a short warm-up, then a cosine to zero.
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=6, val_interval=2)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05),
    paramwise_cfg=dict(norm_decay_mult=0.),
    clip_grad=dict(max_norm=5.))

param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='CosineAnnealingLR', by_epoch=True, convert_to_iter_based=True, begin=0, end=6,
         T_max=6, eta_min=0.),
]

auto_scale_lr = dict(enable=False, base_batch_size=4)
randomness = dict(seed=0)
