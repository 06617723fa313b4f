//! Rewrites the resourceVersion precondition of patches and deletions: clients send the composite version of the proxy,
//! which is replaced with the version of the object's cluster.
//!
//! A version that is not composite or does not include the cluster is kept; the member then rejects the failed
//! precondition.

use http::{HeaderMap, header};
use serde_json::Value;

use crate::composite::CompositeVersion;

const VERSION: &str = "resourceVersion";
/// JSON Pointer of the resourceVersion in a JSON Patch (RFC 6902).
const VERSION_PATH: &str = "/metadata/resourceVersion";

/// The patch with the cluster's own version; None if it contains no composite version of the cluster.
pub fn rewrite_patch(headers: &HeaderMap, sent: &[u8], cluster: &str) -> Option<Vec<u8>> {
    let kind = headers.get(header::CONTENT_TYPE)?.to_str().ok()?.split(';').next()?.trim();
    let mut patch: Value = match kind {
        // Apply patches are sent as JSON under the same media type, because JSON is valid YAML.
        "application/apply-patch+yaml" => serde_saphyr::from_slice(sent).ok()?,
        "application/json-patch+json" | "application/merge-patch+json" | "application/strategic-merge-patch+json" => {
            serde_json::from_slice(sent).ok()?
        }
        _ => return None,
    };
    let has_changed = match patch.as_array_mut() {
        Some(operations) => {
            let version_operations = operations.iter_mut().filter(|operation| operation["path"] == VERSION_PATH);
            version_operations
                .filter_map(|operation| replace_version(operation.get_mut("value"), cluster).then_some(()))
                .count()
                > 0
        }
        None => replace_version(patch.get_mut("metadata").and_then(|metadata| metadata.get_mut(VERSION)), cluster),
    };
    has_changed.then(|| serde_json::to_vec(&patch).ok())?
}

/// DeleteOptions with the cluster's own version; None if they contain no composite version of the cluster.
pub fn rewrite_deletion(sent: &[u8], cluster: &str) -> Option<Vec<u8>> {
    let mut options: Value = serde_json::from_slice(sent).ok()?;
    let version = options.get_mut("preconditions").and_then(|preconditions| preconditions.get_mut(VERSION));
    replace_version(version, cluster).then(|| serde_json::to_vec(&options).ok())?
}

/// Replaces a composite version with the version of a cluster. Returns false if it is not composite or lacks the cluster.
fn replace_version(version: Option<&mut Value>, cluster: &str) -> bool {
    let Some(Value::String(version)) = version else { return false };
    let composite = CompositeVersion::decode(version);
    let Some(member_version) = composite
        .version(cluster)
        .filter(|member_version| !member_version.is_empty() && *member_version != version.as_str())
    else {
        return false;
    };
    *version = member_version.to_owned();
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use rstest::rstest;
    use serde_json::json;

    /// `{"m1":"5"}` and `{"m2":"5"}`.
    const VERSION_OF_M1: &str = "eyJtMSI6IjUifQ";
    const VERSION_OF_M2: &str = "eyJtMiI6IjUifQ";

    #[rstest]
    #[case::merge("application/merge-patch+json", json!({"metadata": {"resourceVersion": VERSION_OF_M1}, "data": {"a": null}}),
        Some(json!({"metadata": {"resourceVersion": "5"}, "data": {"a": null}})))]
    #[case::strategic("application/strategic-merge-patch+json; charset=utf-8", json!({"metadata": {"resourceVersion": VERSION_OF_M1}}),
        Some(json!({"metadata": {"resourceVersion": "5"}})))]
    #[case::apply("application/apply-patch+yaml", json!({"kind": "ConfigMap", "metadata": {"resourceVersion": VERSION_OF_M1}}),
        Some(json!({"kind": "ConfigMap", "metadata": {"resourceVersion": "5"}})))]
    #[case::json_patch("application/json-patch+json", json!([{"op": "test", "path": "/metadata/resourceVersion", "value": VERSION_OF_M1},
        {"op": "add", "path": "/data/a", "value": VERSION_OF_M1}]),
        Some(json!([{"op": "test", "path": "/metadata/resourceVersion", "value": "5"},
        {"op": "add", "path": "/data/a", "value": VERSION_OF_M1}])))]
    #[case::operation_without_value("application/json-patch+json", json!([{"op": "remove", "path": "/metadata/resourceVersion"}]), None)]
    #[case::another_clusters("application/merge-patch+json", json!({"metadata": {"resourceVersion": VERSION_OF_M2}}), None)]
    #[case::the_members_own("application/merge-patch+json", json!({"metadata": {"resourceVersion": "5"}}), None)]
    #[case::not_a_string("application/merge-patch+json", json!({"metadata": {"resourceVersion": 5}}), None)]
    #[case::without_a_version("application/merge-patch+json", json!({"metadata": {"labels": {"a": "b"}}}), None)]
    #[case::not_a_patch("application/json", json!({"metadata": {"resourceVersion": VERSION_OF_M1}}), None)]
    fn versions_in_patches_are_replaced(
        #[case] kind: &'static str,
        #[case] sent: Value,
        #[case] expected: Option<Value>,
    ) {
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(kind))]);
        let rewritten = rewrite_patch(&headers, sent.to_string().as_bytes(), "m1");
        assert_eq!(rewritten.map(|body| serde_json::from_slice::<Value>(&body).unwrap()), expected);
    }

    #[rstest]
    #[case::of_the_cluster(json!({"preconditions": {"uid": "u", "resourceVersion": VERSION_OF_M1}}), Some(json!({"preconditions": {"uid": "u", "resourceVersion": "5"}})))]
    #[case::another_clusters(json!({"preconditions": {"resourceVersion": VERSION_OF_M2}}), None)]
    #[case::none(json!({"propagationPolicy": "Foreground"}), None)]
    fn preconditions_of_deletions_are_replaced(#[case] sent: Value, #[case] expected: Option<Value>) {
        let rewritten = rewrite_deletion(sent.to_string().as_bytes(), "m1");
        assert_eq!(rewritten.map(|body| serde_json::from_slice::<Value>(&body).unwrap()), expected);
    }
}
