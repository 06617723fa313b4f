//! Human-readable messages of an object: those of its conditions, its containers and the clusters it was applied to,
//! and the message of an Event.
//!
//! A parser of the object's JSON tracks its position with [`MessagePosition`] and collects the messages in the same
//! pass.

/// Position in an object's JSON: whether the value there is or contains a message, and the sort key of that message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessagePosition {
    location: Location,
    rank: Rank,
}

/// Part of an object at a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Location {
    Object,
    Event,
    Status,
    Conditions,
    Condition,
    Containers,
    Container,
    State,
    StateDetails,
    Clusters,
    Cluster,
    Message,
    NoMessages,
}

/// Sort key of a message: kind of origin (such as conditions), index within its list, and container state.
type Rank = (u8, u32, u8);

impl MessagePosition {
    /// The root of an object of this kind.
    pub fn root(group: &str, kind: &str) -> Self {
        let is_event = matches!((group, kind), ("" | "events.k8s.io", "Event"));
        Self { location: if is_event { Location::Event } else { Location::Object }, rank: (0, 0, 0) }
    }

    /// A field of the object at this position.
    pub fn field(self, name: &str) -> Self {
        let (origin, nth, state) = self.rank;
        let (location, rank) = match (self.location, name) {
            (Location::NoMessages, _) => return self,
            (Location::Event, "message") => (Location::Message, (0, 0, 0)),
            (Location::Event, "note") => (Location::Message, (1, 0, 0)),
            (Location::Object | Location::Event, "status") => (Location::Status, self.rank),
            (Location::Status, "message") => (Location::Message, (2, 0, 0)),
            (Location::Status, "initContainerStatuses") => (Location::Containers, (3, 0, 0)),
            (Location::Status, "containerStatuses") => (Location::Containers, (4, 0, 0)),
            (Location::Status, "ephemeralContainerStatuses") => (Location::Containers, (5, 0, 0)),
            (Location::Status, "conditions") => (Location::Conditions, (6, 0, 0)),
            (Location::Status, "aggregatedStatus") => (Location::Clusters, (7, 0, 0)),
            (Location::Container, "state") => (Location::State, (origin, nth, 0)),
            (Location::Container, "lastState") => (Location::State, (origin, nth, 2)),
            (Location::State, "waiting") => (Location::StateDetails, (origin, nth, state)),
            (Location::State, "terminated") => (Location::StateDetails, (origin, nth, state + 1)),
            (Location::StateDetails | Location::Condition, "message") => (Location::Message, self.rank),
            (Location::Cluster, "appliedMessage") => (Location::Message, self.rank),
            _ => (Location::NoMessages, self.rank),
        };
        Self { location, rank }
    }

    /// An item of the list at this position.
    pub fn item(self, nth: usize) -> Self {
        let location = match self.location {
            Location::Conditions => Location::Condition,
            Location::Containers => Location::Container,
            Location::Clusters => Location::Cluster,
            _ => Location::NoMessages,
        };
        Self { location, rank: (self.rank.0, u32::try_from(nth).unwrap_or(u32::MAX), self.rank.2) }
    }

    /// True if neither this position nor any below it is a message.
    pub fn has_no_messages(self) -> bool {
        self.location == Location::NoMessages
    }
}

/// Messages collected in any order.
#[derive(Debug, Default)]
pub struct Messages(Vec<(Rank, String)>);

impl Messages {
    /// Adds the text at a position if it is a message and not blank.
    pub fn add(&mut self, position: MessagePosition, text: &str) {
        let text = text.trim();
        if position.location == Location::Message && !text.is_empty() {
            self.0.push((position.rank, text.to_owned()));
        }
    }

    /// The distinct messages in order of their positions.
    pub fn into_vec(self) -> Vec<String> {
        let Self(mut all) = self;
        all.sort_by_key(|(rank, _)| *rank);
        let mut messages: Vec<String> = Vec::with_capacity(all.len());
        for (_, message) in all {
            if !messages.contains(&message) {
                messages.push(message);
            }
        }
        messages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn walk(value: &Value, position: MessagePosition, messages: &mut Messages) {
        match value {
            Value::String(text) => messages.add(position, text),
            Value::Array(items) => {
                items.iter().enumerate().for_each(|(nth, item)| walk(item, position.item(nth), messages));
            }
            Value::Object(fields) => {
                fields.iter().for_each(|(name, value)| walk(value, position.field(name), messages))
            }
            _ => {}
        }
    }

    #[rstest]
    #[case::event("Event", json!({"message": " it failed\n", "status": {}}), &["it failed"])]
    #[case::events_k8s_io_event("Event", json!({"note": "it failed"}), &["it failed"])]
    #[case::pod("Pod", json!({"message": "no event", "status": {"message": "evicted", "conditions": [{"message": "a"}, {"message": null},
        {"message": "b"}, {"message": "a"}], "containerStatuses": [{"state": {"waiting": {"message": "c"}},
        "lastState": {"terminated": {"message": "d"}}}], "initContainerStatuses": [{"state": {"terminated": {"message": "e"}}}]}}),
        &["evicted", "e", "c", "d", "a", "b"])]
    #[case::states_of_each_container("Pod", json!({"status": {"containerStatuses": [
        {"lastState": {"terminated": {"message": "b"}}, "state": {"waiting": {"message": "a"}}},
        {"state": {"terminated": {"message": "d"}, "waiting": {"message": "c"}, "running": {"message": "no"}}}]}}),
        &["a", "b", "c", "d"])]
    #[case::binding("ResourceBinding", json!({"status": {"aggregatedStatus": [{"appliedMessage": "f"}]}}), &["f"])]
    #[case::blank("Pod", json!({"status": {"message": " "}}), &[])]
    #[case::status_is_a_string("Pod", json!({"status": "none"}), &[])]
    #[case::conditions_are_an_object("Pod", json!({"status": {"message": "a", "conditions": {"message": "no"}}}), &["a"])]
    #[case::messages_in_the_spec("Pod", json!({"spec": {"message": "no", "status": {"message": "no"}}}), &[])]
    fn all_messages_are_collected(#[case] kind: &str, #[case] object: Value, #[case] expected: &[&str]) {
        let mut messages = Messages::default();
        walk(&object, MessagePosition::root("", kind), &mut messages);
        assert_eq!(messages.into_vec(), expected);
    }
}
