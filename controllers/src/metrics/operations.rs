//! Metrics of operations on member objects, by cluster and kind. Karmada's counters do not end in `_total`, as
//! OpenMetrics requires, so they are exposed without a type.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

/// Result of an update, in Karmada's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// Nothing was written, because the object is up to date or the write failed.
    None,
    Unchanged,
    Updated,
}

/// An operation on a member object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update(Update),
    Delete,
}

/// Operations that are counted separately.
const COUNTED_OPERATIONS: [Operation; 5] = [
    Operation::Create,
    Operation::Update(Update::None),
    Operation::Update(Update::Unchanged),
    Operation::Update(Update::Updated),
    Operation::Delete,
];

/// Counts of failures and successes, by index in [`COUNTED_OPERATIONS`].
type ResultCounts = [[u64; 2]; COUNTED_OPERATIONS.len()];
/// Counts by cluster, API version and kind.
type OperationCounts = BTreeMap<String, BTreeMap<String, BTreeMap<String, ResultCounts>>>;

/// Counts of operations. The execution controller adds to them; a cluster's counts are removed with the cluster.
#[derive(Debug, Clone, Default)]
pub struct OperationMetrics(Arc<Mutex<OperationCounts>>);

impl OperationMetrics {
    /// Counts an operation. Existing series are updated without allocation.
    pub fn record(&self, cluster: &str, (api_version, kind): (&str, &str), operation: Operation, is_success: bool) {
        let index = match operation {
            Operation::Create => 0,
            Operation::Update(Update::None) => 1,
            Operation::Update(Update::Unchanged) => 2,
            Operation::Update(Update::Updated) => 3,
            Operation::Delete => 4,
        };
        update_entry(&mut self.0.lock(), cluster, |versions| {
            update_entry(versions, api_version, |kinds| {
                update_entry(kinds, kind, |counts: &mut ResultCounts| counts[index][usize::from(is_success)] += 1);
            });
        });
    }

    pub(super) fn forget(&self, cluster: &str) {
        self.0.lock().remove(cluster);
    }
}

/// Updates the value of a key, which is inserted if missing.
fn update_entry<T: Default>(map: &mut BTreeMap<String, T>, key: &str, change: impl FnOnce(&mut T)) {
    match map.get_mut(key) {
        Some(value) => change(value),
        None => change(map.entry(key.to_owned()).or_default()),
    }
}

/// A series and its value.
struct Row<'a> {
    operation: Operation,
    labels: Vec<(&'static str, &'a str)>,
    count: u64,
}

/// Non-zero counts by cluster and kind.
fn rows(counts_by_cluster: &OperationCounts) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    for (cluster, versions) in counts_by_cluster {
        let kinds = versions.iter().flat_map(|(version, kinds)| kinds.iter().map(move |kind| (version, kind)));
        for (api_version, (kind, by_operation)) in kinds {
            for (operation, counts) in COUNTED_OPERATIONS.into_iter().zip(by_operation) {
                for (result, count) in ["error", "success"].into_iter().zip(*counts).filter(|(_, count)| *count > 0) {
                    let mut labels = vec![
                        ("result", result),
                        ("apiversion", api_version),
                        ("kind", kind),
                        ("member_cluster", cluster),
                    ];
                    labels.extend(operation.label());
                    rows.push(Row { operation, labels, count });
                }
            }
        }
    }
    rows
}

impl Operation {
    /// Additional label of the metric. Recreations of deleted objects are counted as creations.
    fn label(self) -> Option<(&'static str, &'static str)> {
        match self {
            Operation::Create => Some(("recreate", "false")),
            Operation::Update(Update::None) => Some(("operationResult", "none")),
            Operation::Update(Update::Unchanged) => Some(("operationResult", "unchanged")),
            Operation::Update(Update::Updated) => Some(("operationResult", "updated")),
            Operation::Delete => None,
        }
    }
}

type OperationFilter = fn(Operation) -> bool;

const FAMILIES: [(&str, &str, OperationFilter); 3] = [
    ("create_resource_to_cluster", "Number of objects created in a cluster, by result", |operation| {
        operation == Operation::Create
    }),
    ("update_resource_to_cluster", "Number of object updates in a cluster, by result", |operation| {
        matches!(operation, Operation::Update(_))
    }),
    ("delete_resource_from_cluster", "Number of objects deleted in a cluster, by result", |operation| {
        operation == Operation::Delete
    }),
];

impl Collector for OperationMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let counts = self.0.lock().clone();
        let rows = rows(&counts);
        for (name, help, is_counted) in FAMILIES {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Unknown)?;
            for row in rows.iter().filter(|row| is_counted(row.operation)) {
                metric.encode_family(&row.labels)?.encode_gauge(&row.count)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::text;

    #[test]
    fn operations_have_karmadas_metric_names_and_are_removed_with_the_cluster() {
        let operations = OperationMetrics::default();
        let (deployment, map) = (("apps/v1", "Deployment"), ("v1", "ConfigMap"));
        let updates = [Update::None, Update::Unchanged, Update::Updated].map(Operation::Update);
        for (cluster, what, operation, is_success) in [
            ("m1", deployment, Operation::Create, true),
            ("m1", deployment, Operation::Create, true),
            ("m1", map, Operation::Create, false),
            ("m1", deployment, updates[0], false),
            ("m1", deployment, updates[0], true),
            ("m1", deployment, updates[1], true),
            ("m1", deployment, updates[2], true),
            ("m1", map, Operation::Delete, true),
            ("m2", map, Operation::Delete, true),
        ] {
            operations.record(cluster, what, operation, is_success);
        }
        operations.forget("m2");
        let expected = r#"# TYPE create_resource_to_cluster unknown
create_resource_to_cluster{result="success",apiversion="apps/v1",kind="Deployment",member_cluster="m1",recreate="false"} 2
create_resource_to_cluster{result="error",apiversion="v1",kind="ConfigMap",member_cluster="m1",recreate="false"} 1
# TYPE update_resource_to_cluster unknown
update_resource_to_cluster{result="error",apiversion="apps/v1",kind="Deployment",member_cluster="m1",operationResult="none"} 1
update_resource_to_cluster{result="success",apiversion="apps/v1",kind="Deployment",member_cluster="m1",operationResult="none"} 1
update_resource_to_cluster{result="success",apiversion="apps/v1",kind="Deployment",member_cluster="m1",operationResult="unchanged"} 1
update_resource_to_cluster{result="success",apiversion="apps/v1",kind="Deployment",member_cluster="m1",operationResult="updated"} 1
# TYPE delete_resource_from_cluster unknown
delete_resource_from_cluster{result="success",apiversion="v1",kind="ConfigMap",member_cluster="m1"} 1
"#;
        assert_eq!(text(operations), expected);
    }
}
