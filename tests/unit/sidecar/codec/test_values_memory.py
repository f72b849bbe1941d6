"""What the values of a JSON text take is known before any is made."""

import json
import subprocess
import sys

import orjson

from batchedmodel_sidecar.codec.jobs import memory_of_values

VALUES = (
    '{"":0}', "{}", "[]", "[0]", "[[]]", "0", "42", "300", "1e9", "0,1e9", "7,300", "null",
    "0.123456789012345678",
    '""', '"a"', '"ab"', '"é"', '"😀"', '"a text of some length, and then a little longer"',
    '"' + "a" * 60 + '😀"', '"' + "a" * 60 + '\\ud83d\\ude00"', '{"a":{"b":{}}}',
    '{"' + "k" * 80 + '":0}', '{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8,"i":9}',
)  # fmt: skip


_READS = """
import json, os, re, sys
import orjson
def memory(of):
    with open("/proc/self/status") as status:
        return 1024 * int(re.search(of + r":\\s+(\\d+)", status.read())[1])
for text in map(str.encode, json.load(sys.stdin)):
    if (child := os.fork()) == 0:
        text = b"[" + (text + b",") * (SIZE // (len(text) + 1)) + text + b"]"
        before = memory("VmRSS")
        values = orjson.loads(text)
        print(memory("VmHWM") - before, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
_SIZE = 2 << 20


def test_values_take_no_more_than_was_counted() -> None:
    script = _READS.replace("SIZE", str(_SIZE))
    words, texts = [sys.executable, "-c", script], json.dumps(VALUES)
    ended = subprocess.run(words, input=texts, capture_output=True, text=True, check=True)
    taken = {value: int(line) for value, line in zip(VALUES, ended.stdout.split(), strict=True)}
    counted = {}
    for value in map(str.encode, VALUES):
        text = b"[" + (value + b",") * (_SIZE // (len(value) + 1)) + value + b"]"
        counted[value.decode()] = memory_of_values(text)
    assert not {
        value: (size, counted[value]) for value, size in taken.items() if size > counted[value]
    }


def test_numbers_of_full_length_count_for_five_times_their_text() -> None:
    text = orjson.dumps([0.1234567890123456 + number for number in range(10_000)])
    assert memory_of_values(text) < 6 * len(text)


def test_small_numbers_count_for_less() -> None:
    assert memory_of_values(b"[" + b"0," * 100_000 + b"0]") < 17 * 200_000


def test_a_text_without_values_is_its_own_length_twice() -> None:
    assert memory_of_values(b" " * 5_000_000) == 10_000_000
    assert memory_of_values(b"") == 0
