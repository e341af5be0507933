"""What pyproject.toml cannot say: conf/ and prompts/ lie at the root and ship as hamr/conf and hamr/prompts."""

from setuptools import find_packages, setup

DATA = ["**/*.yaml", "**/*.yml", "**/*.json", "**/*.jsonl", "**/*.jinja", "**/*.j2", "**/*.md", "**/*.txt", "**/*.html"]

setup(
    packages=[*find_packages(include=["hamr", "hamr.*"]), "hamr.conf", "hamr.prompts"],
    package_dir={"hamr.conf": "conf", "hamr.prompts": "prompts"},
    package_data={"hamr": [*DATA, "py.typed"], "hamr.conf": DATA, "hamr.prompts": DATA},
)
