"""Programs that run beside each other, each waited for by a thread, and end with us."""

import concurrent.futures
import subprocess
import threading


class Children:
    def __init__(self):
        self._lock, self._processes, self._ended = threading.Lock(), set(), False

    def start(self, command: list, **options) -> subprocess.Popen:
        """As subprocess.Popen, without standard input. Nothing starts any more once we are being ended."""
        with self._lock:
            if self._ended:
                raise InterruptedError
            self._processes = {process for process in self._processes if process.poll() is None}
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, **options)
            self._processes.add(process)
            return process

    def run(self, names: list[str], width: int, work, done) -> None:
        """Calls `work(name)` for each, `width` at a time, and `done(name, result)` as they end, on this thread. If we are
        ended meanwhile, which comes as an exception, so is what was started."""
        with concurrent.futures.ThreadPoolExecutor(width) as pool:
            running = {pool.submit(work, name): name for name in names}
            try:
                for future in concurrent.futures.as_completed(running):
                    done(running[future], future.result())
            except BaseException:
                self._end()
                pool.shutdown(cancel_futures=True)
                raise

    def _end(self) -> None:
        with self._lock:
            self._ended = True
            for process in self._processes:
                process.terminate()
