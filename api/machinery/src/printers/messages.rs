//! Human-readable messages of an object: of its conditions, its containers and the clusters it was applied to; and
//! the message of an Event.
//!
//! Extracted by position, so that a parser of the object's JSON can collect them in the same pass.

/// Position in an object's JSON, relative to messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessagePosition {
    step: Step,
    rank: Rank,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
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

/// Sort key of a message: its origin, the index of the origin, and the state.
type Rank = (u8, u32, u8);

impl MessagePosition {
    /// The root of an object of this kind.
    pub fn root(group: &str, kind: &str) -> Self {
        let is_event = matches!((group, kind), ("" | "events.k8s.io", "Event"));
        Self { step: if is_event { Step::Event } else { Step::Object }, rank: (0, 0, 0) }
    }

    /// A field of the object at this position.
    pub fn field(self, name: &str) -> Self {
        let (origin, nth, state) = self.rank;
        let (step, rank) = match (self.step, name) {
            (Step::NoMessages, _) => return self,
            (Step::Event, "message") => (Step::Message, (0, 0, 0)),
            (Step::Event, "note") => (Step::Message, (1, 0, 0)),
            (Step::Object | Step::Event, "status") => (Step::Status, self.rank),
            (Step::Status, "message") => (Step::Message, (2, 0, 0)),
            (Step::Status, "initContainerStatuses") => (Step::Containers, (3, 0, 0)),
            (Step::Status, "containerStatuses") => (Step::Containers, (4, 0, 0)),
            (Step::Status, "ephemeralContainerStatuses") => (Step::Containers, (5, 0, 0)),
            (Step::Status, "conditions") => (Step::Conditions, (6, 0, 0)),
            (Step::Status, "aggregatedStatus") => (Step::Clusters, (7, 0, 0)),
            (Step::Container, "state") => (Step::State, (origin, nth, 0)),
            (Step::Container, "lastState") => (Step::State, (origin, nth, 2)),
            (Step::State, "waiting") => (Step::StateDetails, (origin, nth, state)),
            (Step::State, "terminated") => (Step::StateDetails, (origin, nth, state + 1)),
            (Step::StateDetails | Step::Condition, "message") => (Step::Message, self.rank),
            (Step::Cluster, "appliedMessage") => (Step::Message, self.rank),
            _ => (Step::NoMessages, self.rank),
        };
        Self { step, rank }
    }

    /// An item of the list at this position.
    pub fn item(self, nth: usize) -> Self {
        let step = match self.step {
            Step::Conditions => Step::Condition,
            Step::Containers => Step::Container,
            Step::Clusters => Step::Cluster,
            _ => Step::NoMessages,
        };
        Self { step, rank: (self.rank.0, u32::try_from(nth).unwrap_or(u32::MAX), self.rank.2) }
    }

    /// True if neither this position nor any below it is a message.
    pub fn has_no_messages(self) -> bool {
        self.step == Step::NoMessages
    }
}

/// Collected messages in any order.
#[derive(Debug, Default)]
pub struct Messages(Vec<(Rank, String)>);

impl Messages {
    /// Adds a text at a position.
    pub fn add(&mut self, position: MessagePosition, text: &str) {
        let text = text.trim();
        if position.step == Step::Message && !text.is_empty() {
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
    #[case::newer_event("Event", json!({"note": "it failed"}), &["it failed"])]
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
    #[case::of_another_shape("Pod", json!({"status": "none"}), &[])]
    #[case::in_part_of_another_shape("Pod", json!({"status": {"message": "a", "conditions": {"message": "no"}}}), &["a"])]
    #[case::of_the_spec("Pod", json!({"spec": {"message": "no", "status": {"message": "no"}}}), &[])]
    fn all_messages_are_collected(#[case] kind: &str, #[case] object: Value, #[case] expected: &[&str]) {
        let mut messages = Messages::default();
        walk(&object, MessagePosition::root("", kind), &mut messages);
        assert_eq!(messages.into_vec(), expected);
    }
}
