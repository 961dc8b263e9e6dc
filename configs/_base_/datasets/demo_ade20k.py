# The generated data set (tools/make_demo_data.py) as label maps: 4 shapes on 3 textures.
_base_ = 'ade20k.py'

data_root = '{{$DEMO_ROOT:work_dirs/demo/data}}/ade/ADEChallengeData2016'
metainfo = dict(classes=('disc', 'square', 'triangle', 'star', 'grass', 'water', 'sand'),
                palette=[[231, 58, 60], [230, 200, 60], [200, 60, 231], [60, 231, 231],
                         [60, 160, 60], [38, 119, 200], [222, 190, 125]])

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadLabels'),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadLabels'),
    dict(type='PackSegInputs'),
]
tta_pipeline = _base_.tta_pipeline
tta_pipeline[1]['transforms'][0] = [
    dict(type='Resize', scale=(side, side), keep_ratio=True) for side in (128, 160, 192)
]

# ADE20KDataset allows no classes but ADE20K's.
dataset = dict(
    type='BaseSegDataset',
    data_root=data_root,
    metainfo=metainfo,
    img_suffix='.jpg',
    seg_map_suffix='.png',
    reduce_zero_label=True)
# Epochs, as the detectors on generated data; ADE20K's own configs count iterations.
train_dataloader = dict(
    batch_size=4,
    num_workers=1,
    sampler=dict(type='DefaultSampler'),
    dataset=dict(**dataset, pipeline=train_pipeline))
val_dataloader = dict(num_workers=1, dataset=dict(**dataset, pipeline=test_pipeline))
test_dataloader = val_dataloader
default_hooks = dict(
    logger=dict(log_metric_by_epoch=True),
    checkpoint=dict(by_epoch=True, interval=1))
log_processor = dict(by_epoch=True)
