# dino_focalnet_h_5scale_36e, for GPUs too small for a whole copy of what it trains.
_base_ = ['dino_focalnet_h_5scale_36e.py', '_base_/fsdp.py']
