"""The first import of the fork server: what it and its workers import keeps its bytecode."""

from workbench.data.bytecode import keep_bytecode

keep_bytecode()
