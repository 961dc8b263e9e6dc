# 160k for LocalViT, whose BatchNorms are not called norm, but are not decayed either. Those of neck
# and heads are decayed, as in the other backbones' experiments.
_base_ = '160k.py'

optim_wrapper = dict(
    paramwise_cfg=dict(
        norm_decay_mult=0.,
        custom_keys={
            'neck': dict(decay_mult=1.),
            'decode_head': dict(decay_mult=1.),
            'auxiliary_head': dict(decay_mult=1.),
        }))
