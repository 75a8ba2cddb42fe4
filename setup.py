"""Lists the packages of the wheel: Daybreak's, and as `daybreak.dags` the files that Airflow reads."""

from setuptools import find_packages, setup

setup(packages=[*find_packages("pipeline"), "daybreak.dags", "daybreak.dags.plugins"])
