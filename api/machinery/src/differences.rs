//! Differences between two manifests: between versions of an object, or between clusters.

use serde::Serialize;
use serde_json::Value;

/// Maximum number of differences returned.
pub const MAX_DIFFERENCES: usize = 1000;

/// Fields that differ between any two versions and are therefore ignored.
const IGNORED_BETWEEN_VERSIONS: [&str; 2] = ["/metadata/resourceVersion", "/metadata/managedFields"];
/// Further fields that differ between any two clusters and are therefore ignored.
const IGNORED_BETWEEN_CLUSTERS: [&str; 4] =
    ["/metadata/uid", "/metadata/creationTimestamp", "/metadata/generation", "/metadata/selfLink"];

/// A field whose value differs; a value is `None` if the field is absent.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// JSON pointer (RFC 6901).
    pub path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
}

/// Relation of the compared manifests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComparisonKind {
    Versions,
    Clusters,
}

impl ComparisonKind {
    fn ignores(self, path: &str) -> bool {
        IGNORED_BETWEEN_VERSIONS.contains(&path) || (self == Self::Clusters && IGNORED_BETWEEN_CLUSTERS.contains(&path))
    }
}

/// Finds the differences, in the order of their paths and at most [`MAX_DIFFERENCES`]; the flag is true if there are more.
pub fn find_differences(before: &Value, after: &Value, kind: ComparisonKind) -> (Vec<Difference>, bool) {
    let mut found = Vec::new();
    collect_differences(Some(before), Some(after), &mut String::new(), kind, &mut found);
    let has_more = found.len() > MAX_DIFFERENCES;
    found.truncate(MAX_DIFFERENCES);
    (found, has_more)
}

fn collect_differences(
    before: Option<&Value>,
    after: Option<&Value>,
    at: &mut String,
    kind: ComparisonKind,
    found: &mut Vec<Difference>,
) {
    if before == after || kind.ignores(at) || found.len() > MAX_DIFFERENCES {
        return;
    }
    let mut compare_child = |name: &str, before: Option<&Value>, after: Option<&Value>| {
        let length = at.len();
        at.push('/');
        at.push_str(&name.replace('~', "~0").replace('/', "~1"));
        collect_differences(before, after, at, kind, found);
        at.truncate(length);
    };
    match (before, after) {
        (Some(Value::Object(before)), Some(Value::Object(after))) => {
            let names: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
            names.into_iter().for_each(|name| compare_child(name, before.get(name), after.get(name)));
        }
        (Some(Value::Array(before)), Some(Value::Array(after))) => {
            (0..before.len().max(after.len()))
                .for_each(|nth| compare_child(&nth.to_string(), before.get(nth), after.get(nth)));
        }
        (before, after) => {
            found.push(Difference { path: at.clone(), before: before.cloned(), after: after.cloned() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn differences_are_reported_by_path() {
        let before = json!({"metadata": {"resourceVersion": "1", "uid": "a", "labels": {"a/b": "1"}}, "spec": {"list": [1, {"x": 1}]}});
        let after = json!({"metadata": {"resourceVersion": "2", "uid": "b"}, "spec": {"list": [1, {"x": 2}, 3]}});
        let paths = |kind| {
            let (found, has_more) = find_differences(&before, &after, kind);
            assert!(!has_more);
            found.into_iter().map(|difference| difference.path).collect::<Vec<_>>()
        };
        assert_eq!(
            paths(ComparisonKind::Versions),
            ["/metadata/labels", "/metadata/uid", "/spec/list/1/x", "/spec/list/2"]
        );
        assert_eq!(paths(ComparisonKind::Clusters), ["/metadata/labels", "/spec/list/1/x", "/spec/list/2"]);
    }

    fn manifest() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![Just(json!(null)), any::<bool>().prop_map(|b| json!(b)), (0..3).prop_map(|n| json!(n))];
        leaf.prop_recursive(3, 16, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::Array),
                prop::collection::btree_map("[ab/~]", inner, 0..3).prop_map(|map| json!(map)),
            ]
        })
    }

    proptest! {
        /// Each returned value is the one at its path, and there are differences if and only if the manifests differ.
        #[test]
        fn reported_values_are_at_the_reported_paths(before in manifest(), after in manifest()) {
            let (found, _) = find_differences(&before, &after, ComparisonKind::Versions);
            prop_assert_eq!(found.is_empty(), before == after);
            for difference in found {
                prop_assert_eq!(before.pointer(&difference.path), difference.before.as_ref());
                prop_assert_eq!(after.pointer(&difference.path), difference.after.as_ref());
                prop_assert!(difference.before != difference.after);
            }
        }
    }
}
