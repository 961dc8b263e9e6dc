# What every experiment runs on. The data set files stand on it and add what their task needs
# (default_scope, visualizer, the metric that picks the best checkpoint).
custom_imports = dict(imports=['backbones', 'downstream'], allow_failed_imports=False)

default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50),
    param_scheduler=dict(type='ParamSchedulerHook'),
    # The newest two, so that a run stopped in the middle of a save can still resume.
    checkpoint=dict(type='CheckpointHook', interval=1, max_keep_ckpts=2),
    sampler_seed=dict(type='DistSamplerSeedHook'))

env_cfg = dict(
    cudnn_benchmark=False,
    # OpenCV's threads would multiply with the data loader's workers.
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl'))

# Steps in a row whose gradients are not finite, after which a training stops.
max_nonfinite = 10

log_processor = dict(type='LogProcessor', window_size=50, by_epoch=True)
log_level = 'INFO'
load_from = None
resume = False
