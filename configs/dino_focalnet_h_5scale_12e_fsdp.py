# dino_focalnet_h_5scale_12e, for GPUs too small for a whole copy of what it trains.
_base_ = ['dino_focalnet_h_5scale_12e.py', '_base_/fsdp.py']
