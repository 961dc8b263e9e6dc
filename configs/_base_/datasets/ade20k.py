# ADE20K, 150 classes. ADE20K_ROOT is the folder that holds images/ and annotations/.
_base_ = '../default_runtime.py'

default_scope = 'mmseg'
data_root = '{{$ADE20K_ROOT:data/ade/ADEChallengeData2016}}'
backend_args = None

train_pipeline = [
    dict(type='LoadImageFromFile', backend_args=backend_args),
    dict(type='LoadLabels', backend_args=backend_args),
    dict(type='RandomResize', scale=(2048, 512), ratio_range=(0.5, 2.0), keep_ratio=True),
    dict(type='RandomCrop', crop_size=(512, 512), cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile', backend_args=backend_args),
    dict(type='Resize', scale=(2048, 512), keep_ratio=True),
    # After the resize: predictions are compared with ground truth at the original size.
    dict(type='LoadLabels', backend_args=backend_args),
    dict(type='PackSegInputs'),
]
# Ratios 0.5 to 1.75 of the test scale, as in the papers. (mmseg's own configs give the ratios as
# scale_factor instead, which is relative to the size of the file.)
tta_model = dict(type='SegTTAModel')
tta_pipeline = [
    dict(type='LoadImageFromFile', backend_args=backend_args),
    dict(
        type='TestTimeAug',
        transforms=[
            [
                dict(type='Resize', scale=scale, keep_ratio=True)
                for scale in [(1024, 256), (1536, 384), (2048, 512), (2560, 640), (3072, 768),
                              (3584, 896)]
            ],
            [dict(type='RandomFlip', prob=0.), dict(type='RandomFlip', prob=1.)],
            [dict(type='LoadLabels', backend_args=backend_args)],
            [dict(type='PackSegInputs')],
        ]),
]

train_dataloader = dict(
    batch_size=2,  # a GPU; the recipes' 16 are 8 GPUs x 2
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='ADE20KDataset',
        data_root=data_root,
        data_prefix=dict(img_path='images/training', seg_map_path='annotations/training'),
        pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=1,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='ADE20KDataset',
        data_root=data_root,
        data_prefix=dict(img_path='images/validation', seg_map_path='annotations/validation'),
        pipeline=test_pipeline))
test_dataloader = val_dataloader

val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator

# Segmentation counts iterations, not epochs. Checkpoints come more often than validation, so that
# an interrupted run loses little.
default_hooks = dict(
    logger=dict(log_metric_by_epoch=False),
    checkpoint=dict(by_epoch=False, interval=4000, save_best='mIoU'),
    visualization=dict(type='SegVisualizationHook'))
log_processor = dict(by_epoch=False)
env_cfg = dict(cudnn_benchmark=True)  # worth it where all crops have one size
visualizer = dict(
    type='SegLocalVisualizer', vis_backends=[dict(type='LocalVisBackend')], name='visualizer')
