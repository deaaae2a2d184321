"""The shipped plugins. They are thin: their hooks call the store, and turn its results into decisions.

Modules in a folder `plugins` beside the YAML file, or on PYTHONPATH without an `__init__.py`, are found in this package, too.
"""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
