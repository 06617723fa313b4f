//! Generated CustomResourceDefinitions with sizes and schemas like those of operators: most are small, few have several
//! hundred kilobytes, and most of the text is descriptions.
//!
//! Has no side effects: a definition is a function of its number.

use serde_json::{Map, Value, json};

/// Number of projects, each with its own API group.
pub(super) const PROJECTS: usize = 24;

/// Kilobytes of schema text, and the number of consecutive definitions of which one has this size.
const SIZES: [(usize, usize); 3] = [(600, 40), (200, 11), (60, 4)];
/// Kilobytes of schema text of all other definitions.
const SMALL_SIZE: usize = 15;
/// Depth below which no more objects are nested.
const MAX_DEPTH: usize = 8;
/// Maximum number of fields of an object below the root.
const MAX_FIELDS: usize = 12;
/// Number of consecutive definitions of which one is also served in a second version.
const SECOND_VERSION_INTERVAL: usize = 5;

const WORDS: [&str; 24] = [
    "the", "name", "of", "a", "resource", "that", "selects", "pods", "by", "label", "and", "is", "used", "for", "each",
    "replica", "when", "its", "template", "changes", "default", "value", "must", "match",
];
const NOUNS: [&str; 16] = [
    "template", "selector", "replicas", "image", "policy", "secret", "volume", "timeout", "endpoint", "strategy",
    "labels", "port", "config", "status", "version", "target",
];

/// API group of a project.
pub(super) fn group(project: usize) -> String {
    format!("project{}.bench.crowsnest.io", project % PROJECTS)
}

/// The definition with this number.
pub(super) fn definition(number: usize) -> Value {
    let (plural, kind, group) = (format!("widgets{number}"), format!("Widget{number}"), group(number));
    let mut generator = Generator { state: number as u64 + 1, remaining: schema_bytes(number) };
    let schema = generator.root();
    let version = |name: &str, is_stored: bool| json!({"name": name, "served": true, "storage": is_stored, "schema": {"openAPIV3Schema": schema}});
    let mut versions = vec![version("v1", true)];
    if number.is_multiple_of(SECOND_VERSION_INTERVAL) {
        versions.push(version("v1beta1", false));
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {"group": group, "scope": "Namespaced", "names": {"plural": plural, "kind": kind}, "versions": versions},
    })
}

/// Approximate size of a schema in bytes.
fn schema_bytes(number: usize) -> usize {
    let size = SIZES.iter().find(|(_, every)| number.is_multiple_of(*every));
    size.map_or(SMALL_SIZE, |(kilobytes, _)| *kilobytes) * 1_000
}

/// Generator of a schema with a budget of text.
struct Generator {
    state: u64,
    /// Bytes that are left.
    remaining: usize,
}

impl Generator {
    /// A number below `limit`.
    fn number(&mut self, limit: usize) -> usize {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.state >> 33).unwrap_or_default() % limit
    }

    fn description(&mut self) -> String {
        let words = 6 + self.number(24);
        let text: Vec<&str> = (0..words).map(|_| WORDS[self.number(WORDS.len())]).collect();
        text.join(" ")
    }

    /// A custom resource, whose `spec` uses most of the budget.
    fn root(&mut self) -> Value {
        let mut spec = Map::new();
        let mut number = 0;
        while self.remaining > 0 {
            spec.insert(format!("{}{number}", NOUNS[self.number(NOUNS.len())]), self.field(2));
            number += 1;
        }
        let spec = json!({"type": "object", "description": self.description(), "properties": spec});
        let status = json!({"type": "object", "properties": {"phase": {"type": "string"}}});
        json!({"type": "object", "description": self.description(), "properties": {"spec": spec, "status": status}})
    }

    fn field(&mut self, depth: usize) -> Value {
        let description = self.description();
        self.remaining = self.remaining.saturating_sub(description.len() + 40);
        let choice = self.number(if depth < MAX_DEPTH { 10 } else { 6 });
        let mut field = match choice {
            0..=2 => json!({"type": "string"}),
            3 => json!({"type": "integer", "format": "int32", "minimum": 0}),
            4 => json!({"type": "boolean", "default": false}),
            5 => json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}),
            6 => json!({"type": "object", "additionalProperties": {"type": "string"}}),
            7 => json!({"type": "array", "items": self.object(depth + 1)}),
            _ => self.object(depth + 1),
        };
        field["description"] = description.into();
        field
    }

    fn object(&mut self, depth: usize) -> Value {
        let mut properties = Map::new();
        for number in 0..=self.number(MAX_FIELDS) {
            if self.remaining == 0 {
                break;
            }
            properties.insert(format!("{}{number}", NOUNS[self.number(NOUNS.len())]), self.field(depth));
        }
        json!({"type": "object", "properties": properties})
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn sizes_are_those_of_operators() {
        let definitions: Vec<usize> = (0..80).map(|number| definition(number).to_string().len()).collect();
        assert!(definitions.iter().all(|bytes| (10_000..1_500_000).contains(bytes)), "{definitions:?}");
        let total: usize = definitions.iter().sum();
        assert!((5_000_000..10_000_000).contains(&total), "{total}");
    }

    #[test]
    fn definitions_are_distinct_and_repeatable() {
        let names: BTreeSet<String> =
            (0..80).map(|number| definition(number)["metadata"]["name"].to_string()).collect();
        assert_eq!(names.len(), 80);
        assert_eq!(definition(7), definition(7));
        let groups: BTreeSet<String> = (0..80).map(group).collect();
        assert_eq!(groups.len(), PROJECTS);
    }
}
