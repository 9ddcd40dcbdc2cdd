"""Which kernel modules to load, in which order, found without kmod or depmod.

Every .ko carries its dependencies in a .modinfo section. Soft dependencies are ignored; what the kernel has
built in needs nothing. Names may be written with - or _.
"""

import lzma
from pathlib import Path

import elf


class UnknownModule(Exception):
    pass


def _name(path: str) -> str:
    return path.rpartition("/")[2].partition(".ko")[0].replace("-", "_")


class ModuleTree:
    def __init__(self, directory: Path):
        """`directory` is .../lib/modules/RELEASE as unpacked from the package."""
        self.directory = directory
        self._paths = self._listed("modules.order")
        self._builtin = self._listed("modules.builtin")
        self._loaded: dict[str, bytes] = {}

    def _listed(self, index: str) -> dict[str, str]:
        return {_name(line): line for line in (self.directory / index).read_text().split()}

    def is_builtin(self, module: str) -> bool:
        return _name(module) in self._builtin

    def contents(self, module: str) -> bytes:
        name = _name(module)
        if name not in self._loaded:
            if name not in self._paths:
                raise UnknownModule(f"kernel {self.directory.name} has no module {module}, neither built in nor loadable: "
                                    "check the name or take the other kernel")
            path = self.directory / self._paths[name]
            if path.exists():
                self._loaded[name] = path.read_bytes()
            else:
                self._loaded[name] = lzma.decompress(path.with_name(path.name + ".xz").read_bytes())
        return self._loaded[name]

    def info(self, module: str) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for item in elf.sections(self.contents(module))[".modinfo"].split(b"\0"):
            key, equals, value = item.decode(errors="replace").partition("=")
            if equals:
                found.setdefault(key, []).append(value)
        return found

    def load_order(self, modules) -> list[str]:
        """The loadable ones among `modules` with all they depend on, dependencies first, each once."""
        order: list[str] = []

        def add(module: str) -> None:
            name = _name(module)
            if name in order or (name in self._builtin and name not in self._paths):
                return
            for needed in ",".join(self.info(name).get("depends", [])).split(","):
                if needed:
                    add(needed)
            order.append(name)

        for module in modules:
            add(module)
        return order
