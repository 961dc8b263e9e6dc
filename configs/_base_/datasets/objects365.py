# Objects365 (second version) for DINO: 365 classes, boxes alone, images without objects too.
# OBJECTS365_ROOT is the folder that holds annotations/, train/, val/; the images lie in
# train/patch0/ and so on.
_base_ = 'coco_dino.py'

data_root = '{{$OBJECTS365_ROOT:data/objects365}}'
train_dataloader = dict(
    dataset=dict(
        type='Objects365V2Dataset',
        data_root=data_root,
        ann_file='annotations/zhiyuan_objv2_train.json',
        data_prefix=dict(img='train/')))
val_dataloader = dict(
    dataset=dict(
        type='Objects365V2Dataset',
        data_root=data_root,
        ann_file='annotations/zhiyuan_objv2_val.json',
        data_prefix=dict(img='val/')))
test_dataloader = val_dataloader

val_evaluator = dict(ann_file=data_root + '/annotations/zhiyuan_objv2_val.json')
test_evaluator = val_evaluator
