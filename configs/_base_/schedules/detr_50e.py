# 50 epochs for DETR: its published optimizer, and the schedule with which PVT trains it.
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=50, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

# In float32, as in DETR's own recipe.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, weight_decay=1e-4),
    clip_grad=dict(max_norm=0.1, norm_type=2),
    paramwise_cfg=dict(custom_keys={'backbone': dict(lr_mult=0.1)}))

param_scheduler = [
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=50, milestones=[33], gamma=0.1),
]

# The rate above is for 8 GPUs x 2 images.
auto_scale_lr = dict(enable=False, base_batch_size=16)
