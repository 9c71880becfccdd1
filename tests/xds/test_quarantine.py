"""Which version is sent when one was refused."""

from __future__ import annotations

from controlplane.model.resource import CLUSTER, EXTENSION, Resource, Snapshot
from controlplane.xds.quarantine import Quarantine, View


def lua(text: str) -> Resource:
    return Resource.of("lua", text.encode(), origin="tidegate.yaml:3")


def published(text: str, clusters: tuple[str, ...] = ()) -> Snapshot:
    return Snapshot(
        resources={
            CLUSTER: {name: Resource.of(name, name.encode()) for name in clusters},
            EXTENSION: {"lua": lua(text)},
        }
    )


def sent(view: View) -> bytes | None:
    resource = view.snapshot.of_type(EXTENSION).get("lua")
    return resource.body if resource else None


def quarantine(*history: str) -> Quarantine:
    """Each text of `history` published and accepted, the last one only published."""
    made = Quarantine()
    for text in history:
        made.publish(published(text))
        if text != history[-1]:
            made.accept(EXTENSION, [lua(text)])
    return made


def refuse(made: Quarantine, text: str, node_id: str = "gw-1") -> bool:
    return made.refuse(EXTENSION, lua(text), "script load error", node_id, 5.0)


def test_without_a_refusal_the_published_snapshot_is_sent_as_it_is() -> None:
    made, snapshot = Quarantine(), published("1")
    made.publish(snapshot)
    assert made.view("gw-1").snapshot is snapshot


def test_a_refused_version_is_replaced_by_the_last_accepted_one_for_everybody() -> None:
    made = quarantine("1", "2", "bad")
    assert refuse(made, "bad")
    assert sent(made.view("gw-1")) == sent(made.view("new")) == b"2"


def test_a_refused_version_that_never_had_a_good_one_is_withheld() -> None:
    made = quarantine("bad")
    refuse(made, "bad")
    assert sent(made.view("new")) is None
    assert made.view("new").withheld == {EXTENSION: frozenset({"lua"})}


def test_other_resources_and_types_are_left_alone() -> None:
    made = Quarantine()
    snapshot = published("bad", clusters=("a",))
    made.publish(snapshot)
    refuse(made, "bad")
    assert made.view("x").snapshot.of_type(CLUSTER) == snapshot.of_type(CLUSTER)


def test_a_refusal_is_lifted_when_the_content_changes() -> None:
    made = quarantine("1", "bad")
    refuse(made, "bad")
    made.publish(published("better"))
    assert sent(made.view("gw-1")) == b"better"
    assert made.entries() == ()


def test_a_refusal_stays_while_other_content_changes() -> None:
    made = quarantine("1", "bad")
    refuse(made, "bad")
    made.publish(published("bad", clusters=("new",)))
    assert sent(made.view("gw-1")) == b"1"


def test_a_second_refusal_of_the_same_version_changes_nothing() -> None:
    made = quarantine("1", "bad")
    assert refuse(made, "bad")
    assert not refuse(made, "bad", "gw-2")
    assert len(made.entries()) == 1


def test_a_late_refusal_of_what_was_superseded_changes_nothing() -> None:
    made = quarantine("1", "3")
    assert not refuse(made, "never published")


def test_a_version_that_somebody_accepted_is_kept_from_the_one_who_refuses_it() -> None:
    made = quarantine("1", "2", "3")
    made.accept(EXTENSION, [lua("3")])
    assert refuse(made, "3", "odd")
    assert sent(made.view("odd")) == b"2"
    assert sent(made.view("gw-1")) == b"3"
    assert [entry.fleet for entry in made.entries()] == [False]


def test_the_order_of_acceptance_and_refusal_does_not_matter() -> None:
    made = quarantine("1", "2", "3")
    assert refuse(made, "3", "odd")
    assert sent(made.view("gw-1")) == b"2"
    assert made.accept(EXTENSION, [lua("3")])  # it was on its way when the other refused
    assert sent(made.view("odd")) == b"2"
    assert sent(made.view("gw-1")) == b"3"
    assert [(entry.node_id, entry.fleet) for entry in made.entries()] == [("odd", False)]


def test_every_client_that_refused_is_remembered_when_the_fleet_is_free_again() -> None:
    made = quarantine("1", "2")
    refuse(made, "2", "odd")
    assert not refuse(made, "2", "odder")
    made.accept(EXTENSION, [lua("2")])
    assert [sent(made.view(node)) for node in ("odd", "odder", "gw-1")] == [b"1", b"1", b"2"]


def test_one_odd_client_cannot_take_a_resource_from_the_fleet() -> None:
    made = quarantine("1", "1")
    made.accept(EXTENSION, [lua("1")])
    refuse(made, "1", "odd")
    assert sent(made.view("odd")) is None
    assert sent(made.view("gw-1")) == b"1"


def test_an_acceptance_of_an_older_version_by_a_slow_client_does_not_make_it_the_newest() -> None:
    made = quarantine("1", "2", "bad")
    made.accept(EXTENSION, [lua("1")])
    refuse(made, "bad")
    assert sent(made.view("new")) == b"2"


def test_what_the_last_good_version_refers_to_stays_until_the_refusal_is_lifted() -> None:
    made = Quarantine()
    before = published("1", clusters=("old", "both"))
    made.publish(before)
    made.accept(CLUSTER, before.of_type(CLUSTER).values())
    made.accept(EXTENSION, [lua("1")])
    made.publish(published("bad", clusters=("both", "new")))
    refuse(made, "bad")
    assert set(made.view("gw-1").snapshot.of_type(CLUSTER)) == {"old", "both", "new"}
    made.publish(published("good", clusters=("both", "new")))
    assert set(made.view("gw-1").snapshot.of_type(CLUSTER)) == {"both", "new"}


def test_what_is_gone_is_forgotten_once_everybody_has_what_is_published() -> None:
    made = Quarantine()
    before = published("1", clusters=("old",))
    made.publish(before)
    made.accept(CLUSTER, before.of_type(CLUSTER).values())
    made.publish(published("2"))
    made.accept(EXTENSION, [lua("2")])
    made.forget()
    made.publish(published("bad"))
    refuse(made, "bad")
    assert set(made.view("gw-1").snapshot.of_type(CLUSTER)) == set()


def test_the_view_is_one_object_until_something_changes() -> None:
    made = quarantine("1", "bad")
    refuse(made, "bad")
    assert made.view("a") is made.view("b")


def test_an_entry_names_the_line_the_words_and_the_client() -> None:
    made = quarantine("1", "bad")
    refuse(made, "bad")
    (entry,) = made.entries()
    assert (entry.origin, entry.reason, entry.node_id, entry.at_s) == (
        "tidegate.yaml:3",
        "script load error",
        "gw-1",
        5.0,
    )
