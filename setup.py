"""Which folders make the package; everything else about it is in pyproject.toml.

The experiments' configs come along as downstream/configs, where downstream/experiments.py finds
them, so that site-packages gets no folder of so common a name as `configs`.
"""
from setuptools import find_namespace_packages, find_packages, setup

configs = ['downstream.configs', *(f'downstream.configs.{name}'
                                   for name in find_namespace_packages('configs'))]
setup(
    packages=find_packages(include=['backbones*', 'downstream*']) + configs,
    package_dir={'downstream.configs': 'configs'},
    package_data={'backbones': ['*.yml'], 'downstream.configs': ['*.yml'],
                  'downstream.data': ['*.yml'], 'downstream.looking': ['*.j2']})
