"""bench"""


class Bench: ...


def bench(): ...
