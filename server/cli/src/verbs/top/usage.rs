//! Resource usage as table rows. Has no side effects.

use std::collections::BTreeMap;

use crowsnest_apimachinery::quantity::Quantity;
use serde_json::Value;

use crate::object::text;

const MEBIBYTE: i64 = 1 << 20;
const CLUSTER_ANNOTATION: &str = "/metadata/annotations/resource.karmada.io~1query-from-cluster";
const UNKNOWN: &str = "<unknown>";

/// Usage of a pod, a container or a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) cluster: String,
    namespace: String,
    name: String,
    container: String,
    /// CPU in millicores.
    pub(super) cpu_millicores: i64,
    /// Memory in bytes.
    pub(super) memory_bytes: i64,
}

/// Capacity of a node, in the same units.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Capacity {
    cpu_millicores: i64,
    memory_bytes: i64,
}

/// The cluster that an item of the merged metrics API comes from.
pub(super) fn cluster(item: &Value) -> &str {
    text(item, CLUSTER_ANNOTATION)
}

/// CPU in millicores and memory in bytes; 0 if an amount is missing.
fn parse_amounts(amounts: Option<&Value>) -> (i64, i64) {
    let amount = |name: &str| Quantity::parse(amounts?.get(name).and_then(Value::as_str)?).ok();
    let (cpu, memory) = (amount("cpu"), amount("memory"));
    (cpu.map_or(0, |cpu| cpu.milli_value()), memory.map_or(0, |memory| memory.value()))
}

impl Usage {
    fn new(item: &Value, container: &str, (cpu, memory): (i64, i64)) -> Self {
        Self {
            cluster: cluster(item).to_owned(),
            namespace: text(item, "/metadata/namespace").to_owned(),
            name: text(item, "/metadata/name").to_owned(),
            container: container.to_owned(),
            cpu_millicores: cpu,
            memory_bytes: memory,
        }
    }

    pub(super) fn from_node(item: &Value) -> Self {
        Self::new(item, "", parse_amounts(item.get("usage")))
    }

    /// Usage of a pod as a whole, or of each container.
    pub(super) fn from_pod(item: &Value, per_container: bool) -> Vec<Self> {
        let containers = item.get("containers").and_then(Value::as_array).into_iter().flatten();
        let usages = containers.map(|usage| Self::new(item, text(usage, "/name"), parse_amounts(usage.get("usage"))));
        if per_container {
            return usages.collect();
        }
        let sum = usages.fold((0, 0), |(cpu, memory), usage| (cpu + usage.cpu_millicores, memory + usage.memory_bytes));
        vec![Self::new(item, "", sum)]
    }

    fn cells(&self) -> [String; 2] {
        [format!("{}m", self.cpu_millicores), format!("{}Mi", self.memory_bytes / MEBIBYTE)]
    }
}

impl Capacity {
    /// The allocatable resources of a node, or its capacity.
    pub(super) fn from_node(node: &Value, use_capacity: bool) -> Self {
        let (cpu, memory) =
            parse_amounts(node.pointer(if use_capacity { "/status/capacity" } else { "/status/allocatable" }));
        Self { cpu_millicores: cpu, memory_bytes: memory }
    }
}

fn header_row(names: &[&str], has_headers: bool) -> Vec<Vec<String>> {
    if has_headers { vec![names.iter().map(|name| (*name).to_owned()).collect()] } else { Vec::new() }
}

pub(super) fn pod_rows(
    usages: &[Usage],
    has_namespace: bool,
    has_container: bool,
    has_sum: bool,
    has_headers: bool,
) -> Vec<Vec<String>> {
    let first: &[&str] = if has_namespace { &["NAMESPACE"] } else { &[] };
    let names: &[&str] = if has_container { &["POD", "CLUSTER", "NAME"] } else { &["NAME", "CLUSTER"] };
    let mut rows = header_row(&[first, names, &["CPU(cores)", "MEMORY(bytes)"]].concat(), has_headers);
    let row = |usage: &Usage| {
        let namespace = has_namespace.then(|| usage.namespace.clone());
        let container = has_container.then(|| usage.container.clone());
        let names = [usage.name.clone(), usage.cluster.clone()];
        namespace.into_iter().chain(names).chain(container).chain(usage.cells()).collect::<Vec<_>>()
    };
    rows.extend(usages.iter().map(row));
    if has_sum {
        let sum = |amount: fn(&Usage) -> i64| usages.iter().map(amount).sum::<i64>();
        let total = Usage {
            cpu_millicores: sum(|usage| usage.cpu_millicores),
            memory_bytes: sum(|usage| usage.memory_bytes),
            ..Usage::new(&Value::Null, "", (0, 0))
        };
        let empty_cells = vec![String::new(); first.len() + names.len() - 1];
        rows.push(empty_cells.into_iter().chain(["SUM".to_owned()]).chain(total.cells()).collect());
    }
    rows
}

pub(super) fn node_rows(
    usages: &[Usage],
    capacities: &BTreeMap<(String, String), Capacity>,
    has_headers: bool,
) -> Vec<Vec<String>> {
    let mut rows = header_row(&["NAME", "CLUSTER", "CPU(cores)", "CPU(%)", "MEMORY(bytes)", "MEMORY(%)"], has_headers);
    let share = |used: i64, total: Option<i64>| match total {
        Some(total) if total > 0 => format!("{}%", used * 100 / total),
        _ => UNKNOWN.to_owned(),
    };
    rows.extend(usages.iter().map(|usage| {
        let capacity = capacities.get(&(usage.cluster.clone(), usage.name.clone()));
        let [cpu, memory] = usage.cells();
        let (cpu_share, memory_share) = (
            share(usage.cpu_millicores, capacity.map(|capacity| capacity.cpu_millicores)),
            share(usage.memory_bytes, capacity.map(|capacity| capacity.memory_bytes)),
        );
        vec![usage.name.clone(), usage.cluster.clone(), cpu, cpu_share, memory, memory_share]
    }));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod() -> Value {
        json!({"metadata": {"name": "web-0", "namespace": "shop", "annotations": {"resource.karmada.io/query-from-cluster": "m1"}},
            "containers": [{"name": "web", "usage": {"cpu": "1500m", "memory": "64Mi"}},
                {"name": "side", "usage": {"cpu": "250000000n", "memory": "1Mi"}}]})
    }

    fn lines(rows: &[Vec<String>]) -> Vec<String> {
        rows.iter().map(|row| row.join(" ")).collect()
    }

    #[test]
    fn pod_usage_is_summed_or_per_container() {
        let total = Usage::from_pod(&pod(), false);
        assert_eq!(
            lines(&pod_rows(&total, false, false, false, true)),
            ["NAME CLUSTER CPU(cores) MEMORY(bytes)", "web-0 m1 1750m 65Mi"]
        );
        let each = Usage::from_pod(&pod(), true);
        assert_eq!(
            lines(&pod_rows(&each, true, true, true, false)),
            ["shop web-0 m1 web 1500m 64Mi", "shop web-0 m1 side 250m 1Mi", "   SUM 1750m 65Mi"]
        );
    }

    #[test]
    fn node_usage_has_shares() {
        let node = json!({"metadata": {"name": "n1", "annotations": {"resource.karmada.io/query-from-cluster": "m1"}},
            "usage": {"cpu": "500m", "memory": "1Gi"}});
        let used = [Usage::from_node(&node)];
        let capacities = json!({"status": {"allocatable": {"cpu": "2", "memory": "4Gi"}, "capacity": {"cpu": "4", "memory": "4Gi"}}});
        let capacity = |use_capacity| {
            BTreeMap::from([(("m1".to_owned(), "n1".to_owned()), Capacity::from_node(&capacities, use_capacity))])
        };
        assert_eq!(lines(&node_rows(&used, &capacity(false), false)), ["n1 m1 500m 25% 1024Mi 25%"]);
        assert_eq!(lines(&node_rows(&used, &capacity(true), false)), ["n1 m1 500m 12% 1024Mi 25%"]);
        assert_eq!(lines(&node_rows(&used, &BTreeMap::new(), false)), ["n1 m1 500m <unknown> 1024Mi <unknown>"]);
    }
}
