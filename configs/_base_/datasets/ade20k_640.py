# ADE20K in crops of 640 pixels, as Mask2Former's larger models have them: of one class alone, too.
_base_ = 'ade20k.py'

crop_size = (640, 640)
train_pipeline = _base_.train_pipeline
train_pipeline[2] = dict(
    type='RandomChoiceResize',
    scales=[short * 64 for short in range(5, 21)],  # half to twice of 640
    resize_type='ResizeShortestEdge',
    max_size=2560)
train_pipeline[3] = dict(type='RandomCrop', crop_size=crop_size, cat_max_ratio=1.)
test_pipeline = _base_.test_pipeline
test_pipeline[1] = dict(type='Resize', scale=(2560, 640), keep_ratio=True)
tta_pipeline = _base_.tta_pipeline
tta_pipeline[1]['transforms'][0] = [
    dict(type='Resize', scale=scale, keep_ratio=True)
    for scale in [(1280, 320), (1920, 480), (2560, 640), (3200, 800), (3840, 960), (4480, 1120)]
]

train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
