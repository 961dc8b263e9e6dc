# 40k iterations of AdamW for a linear head on frozen features. Ours: warm-up, decay of the rate and
# batch of 160k.py, with a rate for one layer from scratch; nothing else is trained.
train_cfg = dict(type='IterBasedTrainLoop', max_iters=40000, val_interval=4000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, betas=(0.9, 0.999), weight_decay=1e-4))

param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', power=1.0, eta_min=0., by_epoch=False, begin=0, end=40000),
]

# The rate above is for 8 GPUs x 2 images.
auto_scale_lr = dict(enable=False, base_batch_size=16)
