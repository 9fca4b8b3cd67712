import subprocess
import sys


def test_loading_the_package_registers_all_of_them() -> None:
    code = (
        "from runner.handlers.discovery import discover; print(*sorted(discover(['sample_handlers'], installed=False)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["source.count", "source.digest", "source.parse", "source.tree"]
