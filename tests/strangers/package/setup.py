from setuptools import find_packages
from setuptools import setup

setup(
    name='trainer',
    version='0.1',
    install_requires=['scikit-learn'],
    packages=find_packages(),
    include_package_data=True,
    description='Digits sample.'
)
