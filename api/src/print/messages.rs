//! Everything an object says in sentences: its conditions, its containers, the clusters it was applied to; what an Event
//! tells.

use super::Source;
use super::view::{Condition, Str, null_as_default, views};
use serde::Deserialize;

type Text<'a> = Option<Str<'a>>;

views! {
    Object { message: Text<'a>, note: Text<'a>, status: Status<'a> }
    Status {
        message: Text<'a>,
        conditions: Vec<Condition<'a>>,
        init_container_statuses: Vec<Container<'a>>,
        container_statuses: Vec<Container<'a>>,
        ephemeral_container_statuses: Vec<Container<'a>>,
        aggregated_status: Vec<Item<'a>>,
    }
    Container { state: State<'a>, last_state: State<'a> }
    State { waiting: Said<'a>, terminated: Said<'a> }
    Said { message: Text<'a> }
    Item { applied_message: Text<'a> }
}

/// The messages of an object, each once.
pub fn messages<'a>(group: &str, kind: &str, source: impl Source<'a>) -> Vec<String> {
    let Object { message, note, status, .. } = source.read::<Object<'a>>().unwrap_or_default();
    let containers =
        [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    let states = containers.into_iter().flatten().flat_map(|of| [&of.state, &of.last_state]);
    let of_states = states.flat_map(|state| [&state.waiting.message, &state.terminated.message]);
    let of_conditions = status.conditions.iter().map(|condition| &condition.message);
    let of_clusters = status.aggregated_status.iter().map(|item| &item.applied_message);
    let event = matches!((group, kind), ("" | "events.k8s.io", "Event"));
    let own = event.then_some([&message, &note]).into_iter().flatten();
    let all = own.chain([&status.message]).chain(of_states).chain(of_conditions).chain(of_clusters);
    let mut messages: Vec<String> = Vec::new();
    for message in all.filter_map(|text| text.as_deref()).map(str::trim).filter(|text| !text.is_empty()) {
        if !messages.iter().any(|other| other == message) {
            messages.push(message.to_owned());
        }
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::messages;
    use rstest::rstest;
    use serde_json::{Value, json};

    #[rstest]
    #[case::event("Event", json!({"message": " it failed\n", "status": {}}), &["it failed"])]
    #[case::newer_event("Event", json!({"note": "it failed"}), &["it failed"])]
    #[case::pod("Pod", json!({"message": "no event", "status": {"message": "evicted", "conditions": [{"message": "a"}, {"message": null},
        {"message": "b"}, {"message": "a"}], "containerStatuses": [{"state": {"waiting": {"message": "c"}},
        "lastState": {"terminated": {"message": "d"}}}], "initContainerStatuses": [{"state": {"terminated": {"message": "e"}}}]}}),
        &["evicted", "e", "c", "d", "a", "b"])]
    #[case::binding("ResourceBinding", json!({"status": {"aggregatedStatus": [{"appliedMessage": "f"}]}}), &["f"])]
    #[case::of_another_shape("Pod", json!({"status": "none"}), &[])]
    fn every_message_is_told(#[case] kind: &str, #[case] object: Value, #[case] expected: &[&str]) {
        assert_eq!(messages("", kind, &object), expected);
        assert_eq!(messages("", kind, object.to_string().as_bytes()), expected);
    }
}
