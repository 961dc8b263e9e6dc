# 160k iterations of AdamW for semantic segmentation with Mask2Former: its published recipe.
train_cfg = dict(type='IterBasedTrainLoop', max_iters=160000, val_interval=5000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

# The backbone learns at a tenth of the rate. Norms and the queries are not decayed: a parameter
# takes the longest key in its name, so the backbone's norms need keys of their own. (Keys of blocks
# that a backbone lacks do no harm.)
queries = dict(lr_mult=1., decay_mult=0.)
norms = dict(lr_mult=0.1, decay_mult=0.)
optim_wrapper = dict(
    type='AmpOptimWrapper',
    loss_scale='dynamic',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
    clip_grad=dict(max_norm=0.01, norm_type=2),
    paramwise_cfg=dict(
        norm_decay_mult=0.,
        custom_keys={
            'query_embed': queries,
            'query_feat': queries,
            'level_embed': queries,
            'backbone': dict(lr_mult=0.1, decay_mult=1.),
            'backbone.norm': norms,
            'backbone.patch_embed.norm': norms,
            **{f'backbone.layers.{stage}.downsample.norm': norms for stage in range(3)},
            **{
                f'backbone.layers.{stage}.blocks.{block}.{name}': norms
                for stage in range(4) for block in range(18)
                for name in ('norm', 'modulation.ln')
            },
        }))

param_scheduler = [
    dict(type='PolyLR', power=0.9, eta_min=0., by_epoch=False, begin=0, end=160000),
]

# The rate above is for 8 GPUs x 2 images.
auto_scale_lr = dict(enable=False, base_batch_size=16)
