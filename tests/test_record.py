"""Values of `Record`: equal by class and fields, hashable, picklable, and never changed."""

import pickle

import pytest

from einops_fast.planning.steps import AS_IS, Arrange, Select, Sum


def test_values_of_two_classes_are_never_equal() -> None:
    fields = (0,), "i", (3,), (1,)
    assert Sum(*fields) == Sum(reads=(0,), labels="i", shape=(3,), axes=(1,))
    assert Sum(*fields) != Select(*fields) != tuple(fields)
    assert len({Sum(*fields), Sum(*fields), Select(*fields)}) == 2


def test_values_are_pickled_and_replaced() -> None:
    how = Arrange((1, 0), moves="a reason")
    assert pickle.loads(pickle.dumps(how)) == how
    assert how.replace(perm=None, moves="") == AS_IS
    assert repr(how) == "Arrange(perm=(1, 0), shape=None, moves='a reason')"
    with pytest.raises(AttributeError):
        how.moves = ""  # type: ignore[misc]


@pytest.mark.parametrize("fields", [{"colour": 1}, {"perm": None, "shape": None, "moves": "", "more": 1}])
def test_unknown_fields_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(TypeError):
        Arrange(**fields)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Sum((0,), "i")  # type: ignore[call-arg]
