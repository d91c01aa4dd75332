"""What code in a kernel's file can do to whoever calls it, as bodies of a function.

The body may return a value, which then stands in place of the right one; None stands for none.
"""

from __future__ import annotations

# Ends in an exception.
RAISES: dict[str, str] = {
    "ValueError": "raise ValueError('no')",
    "long message": "raise ValueError('x' * 100_000)",
    "escapes in the message": r"raise ValueError('\x1b[2J\x1b]0;owned\x07\nline two')",
    "surrogates in the message": r"raise ValueError('\ud800\udcff')",
    "no message": "raise RuntimeError",
    "KeyError": "raise KeyError(('a', None))",
    "StopIteration": "raise StopIteration",
    "StopAsyncIteration": "raise StopAsyncIteration",
    "GeneratorExit": "raise GeneratorExit",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
    "sys.exit(0)": "sys.exit(0)",
    "sys.exit(1)": "sys.exit(1)",
    "sys.exit of a text": r"sys.exit('\x1b[2Jbye')",
    "sys.exit of a huge number": "sys.exit(10 ** 400)",
    "sys.exit of an object": "sys.exit(object())",
    "recursion": "def again(n):\n    return again(n + 1) + 1\nagain(0)",
    "MemoryError": "raise MemoryError('none')",
    "all memory": "held = []\nwhile True:\n    held.append(bytearray(1 << 28))",
    "too much at once": "bytearray(1 << 46)",
    "a class of its own": "class Odd(Exception):\n    pass\nraise Odd('x')",
    "a BaseException": "class Odd(BaseException):\n    pass\nraise Odd('x')",
    "a message that fails": (
        "class Odd(Exception):\n    def __str__(self):\n        raise ValueError('no text')\n"
        "    __repr__ = __str__\nraise Odd('x')"
    ),
    "a message that ends the process": (
        "class Odd(Exception):\n    def __str__(self):\n        sys.exit(3)\nraise Odd('x')"
    ),
    "a message that is not text": (
        "class Odd(Exception):\n    def __str__(self):\n        return 5\nraise Odd('x')"
    ),
    "cannot travel": "raise ValueError(lambda: 1, threading.Lock())",
    "cannot arrive": (
        "class Odd(Exception):\n    def __init__(self, a, b):\n        super().__init__(a)\n"
        "raise Odd(1, 2)"
    ),
    "arrives with an exit": (
        "class Odd(Exception):\n    def __reduce__(self):\n        return sys.exit, (3,)\n"
        "raise Odd('x')"
    ),
    "travels with an exit": (
        "class Odd(Exception):\n    def __reduce__(self):\n        sys.exit(3)\nraise Odd('x')"
    ),
    "a group": "raise ExceptionGroup('two', [ValueError('a'), KeyError('b')])",
    "a group of exits": "raise BaseExceptionGroup('two', [SystemExit(0), KeyboardInterrupt()])",
    "TimeoutError": "raise TimeoutError('mine')",
    "ChildProcessError": "raise ChildProcessError('mine')",
    "CancelledError": "import concurrent.futures\nraise concurrent.futures.CancelledError",
    "asyncio's CancelledError": "import asyncio\nraise asyncio.CancelledError",
    "BrokenPipeError": "raise BrokenPipeError(32, 'Broken pipe')",
    "no space": "raise OSError(28, 'No space left on device', 'mine')",
    "EOFError": "raise EOFError",
    "a circle of causes": (
        "a, b = ValueError('a'), ValueError('b')\na.__cause__, b.__cause__ = b, a\nraise a"
    ),
    "a warning": "raise UserWarning('mine')",
    "SyntaxError": "raise SyntaxError('mine', ('x', None, None, None))",
    "UnicodeError": "b'\\xff'.decode()",
    "an exception that is none": "raise 5",
    "out of memory of torch": "raise torch.OutOfMemoryError('mine')",
}  # fmt: skip

# Ends the process, or another one.
ENDS: dict[str, str] = {
    "os._exit(0)": "os._exit(0)",
    "os._exit(1)": "os._exit(1)",
    "os._exit(130)": "os._exit(130)",
    "segfault": "ctypes.string_at(0)",
    "abort": "os.abort()",
    **{
        f"sends itself {name}": f"os.kill(os.getpid(), signal.{name})\ntime.sleep(0.2)"
        for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGALRM", "SIGPIPE", "SIGSEGV",
                     "SIGUSR1", "SIGQUIT", "SIGXCPU")
    },
    "stops itself": "os.kill(os.getpid(), signal.SIGSTOP)",
    "an alarm later": "signal.setitimer(signal.ITIMER_REAL, 0.05)\ntime.sleep(0.3)",
    "a thread that exits": (
        "threading.Thread(target=lambda: (time.sleep(0.1), os._exit(5))).start()\ntime.sleep(1)"
    ),
}  # fmt: skip

# Never returns.
HANGS: dict[str, str] = {
    "endless loop": "while True:\n    pass",
    "sleep": "time.sleep(100_000)",
    "a lock twice": "lock = threading.Lock()\nlock.acquire()\nlock.acquire()",
    "an empty pipe": "os.read(os.pipe()[0], 1)",
    "a loop that keeps its exceptions": (
        "while True:\n    try:\n        time.sleep(0.01)\n    except BaseException:\n        pass"
    ),
    "ignores signals and sleeps": (
        "for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):\n"
        "    signal.signal(n, signal.SIG_IGN)\ntime.sleep(100_000)"
    ),
    "a long power": "9 ** 9 ** 9",
    "a long pattern": "import re\nre.match('(a+)+$', 'a' * 60 + 'b')",
}

# Changes the process, and returns. What runs there afterwards may be lost.
SPOILS: dict[str, str] = {
    "torch.equal": "torch.equal = lambda *given: True",
    "torch.allclose": "torch.allclose = lambda *given, **more: True",
    "torch.empty": "torch.empty = None",
    "torch.empty_like": "torch.empty_like = lambda x, **more: torch.zeros(0)",
    "tensors' methods": "torch.Tensor.__ne__ = lambda *given: False",
    "the default dtype": "torch.set_default_dtype(torch.float64)",
    "the default device": "torch.set_default_device('meta')",
    "no gradients": "torch.set_grad_enabled(False)",
    "determinism": "torch.use_deterministic_algorithms(True)",
    "print": "import builtins\nbuiltins.print = None",
    "open": "import builtins\nbuiltins.open = None",
    "the clock": "time.monotonic = lambda: 0.0",
    "json": "import json\njson.dumps = None",
    "no modules": "sys.modules.clear()",
    "no path": "sys.path.clear()",
    "no stdout": "sys.stdout = None",
    "closed streams": "sys.stdout.close()\nsys.stderr.close()",
    "closed outputs": "os.close(1)\nos.close(2)",
    "closed descriptors": "os.closerange(3, 256)",
    "no files": "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))",
    "no file sizes": "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))",
    "no depth": "sys.setrecursionlimit(60)",
    "an import hook": (
        "class Odd:\n    def find_spec(self, *given):\n        raise SystemError('mine')\n"
        "sys.meta_path.insert(0, Odd())"
    ),
    "a trace": "sys.settrace(lambda *given: sys.exit(3))",
    "another start of processes": (
        "import multiprocessing\nmultiprocessing.set_start_method('spawn', force=True)"
    ),
    "ignored children": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "the umask": "os.umask(0o777)",
    "warnings as errors": "import warnings\nwarnings.simplefilter('error')",
    "its own file": "open(__file__, 'a').write('\\nraise ValueError\\n')",
    "no file of its own": "os.remove(__file__)",
    "its own code": "text = open(__file__).read()\nopen(__file__, 'w').write(text + '\\ny = 1\\n')",
}

# Does something odd, and returns: nobody should mind.
HARMLESS: dict[str, str] = {
    "a thread": "threading.Thread(target=time.sleep, args=(100_000,)).start()",
    "many threads": (
        "for _ in range(50):\n    threading.Thread(target=time.sleep, args=(100_000,)).start()"
    ),
    "a forked process": "if os.fork() == 0:\n    time.sleep(100_000)\n    os._exit(0)",
    "a forked process that ends": "if os.fork() == 0:\n    os._exit(7)",
    "a program": "import subprocess\nsubprocess.Popen(['sleep', '100000'])",
    "megabytes of text": "print('x' * 5_000_000)",
    "odd text": r"print('\ud800' if False else '\u202e\u2066🚀' * 1000)",
    "the folder": "os.chdir('/')",
    "a deleted folder": "import tempfile\nos.chdir(p := tempfile.mkdtemp())\nos.rmdir(p)",
    "no variables": "os.environ.clear()",
    "Ctrl-C": "signal.signal(signal.SIGINT, signal.SIG_IGN)",
    "signals": "signal.signal(signal.SIGTERM, lambda *given: None)",
    "seeds": "torch.manual_seed(0)\nimport random\nrandom.seed(0)",
    "no garbage": "import gc\ngc.disable()",
    "an exit handler that raises": "import atexit\natexit.register(lambda: 1 // 0)",
    "an exit handler that exits": "import atexit\natexit.register(lambda: os._exit(7))",
    "an exit handler that hangs": "import atexit\natexit.register(time.sleep, 100_000)",
    "nice": "os.nice(19)",
    "many files": "held = [os.open('/dev/null', 0) for _ in range(200)]",
    "a del that fails": (
        "class Odd:\n    def __del__(self):\n        sys.exit(3)\nOdd()"
    ),
    "logging": "import logging\nlogging.disable()\nlogging.raiseExceptions = False",
}  # fmt: skip

# Stands in place of the right value.
VALUES: dict[str, str] = {
    "False": "False",
    "True": "True",
    "nan": "float('nan')",
    "inf": "float('inf')",
    "-1": "-1",
    "huge": "10 ** 400",
    "text": "'no'",
    "no text": "''",
    "long text": "'x' * 100_000",
    "escapes": r"'\x1b[2J\x1b]0;owned\x07\nline two'",
    "surrogates": r"'\ud800\udcff'",
    "bytes": "b'x'",
    "an object": "object()",
    "a list": "[]",
    "a circle": "(lambda x: (x.append(x), x)[1])([])",
    "a mapping": "{}",
    "a tensor": "torch.ones(3)",
    "a scalar": "torch.tensor(1.5)",
    "a function": "lambda *given, **more: 1",
    "a class": "int",
    "NotImplemented": "NotImplemented",
    "an exception": "ValueError('mine')",
    "a generator": "(n for n in (1, 2))",
    "a repr that fails": "type('Odd', (), {'__repr__': lambda s: 1 // 0})()",
    "a repr that exits": "type('Odd', (), {'__repr__': lambda s: sys.exit(3)})()",
    "a truth that fails": "type('Odd', (), {'__bool__': lambda s: 1 // 0})()",
    "an odd number": "type('Odd', (int,), {'__lt__': lambda s, o: 1 // 0})(5)",
    "an odd text": "type('Odd', (str,), {'__str__': lambda s: sys.exit(3)})('x')",
    "a lying class": "type('Odd', (), {'__class__': property(lambda s: str)})()",
}
