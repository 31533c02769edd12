"""Copy the folders that lie beside the packages into the wheel; everything else is in pyproject.toml.

An editable install copies nothing: `hetsched.adapters.assets` finds the folders of the checkout.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
FOLDERS = {"templates": "templates", "static": "static", "locale": "locale", "deploy/crds": "crds"}


class BuildWithAssets(build_py):
    """Build the packages, and `hetsched/assets` from the folders beside them."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        assets = Path(self.build_lib, "hetsched", "assets")
        shutil.rmtree(assets, ignore_errors=True)
        for source, target in FOLDERS.items():
            shutil.copytree(ROOT / source, assets / target)


setup(cmdclass={"build_py": BuildWithAssets})
