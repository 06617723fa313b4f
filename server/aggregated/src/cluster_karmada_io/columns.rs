//! Printed columns of a Cluster, the same as Karmada's.

use crowsnest_apimachinery::printers::Cell;
use crowsnest_apimachinery::printers::columns::{AGE, Column, ColumnDescription, KindPrinter, NAME, fields};
use serde_json::Value;

pub(super) static COLUMNS: KindPrinter = KindPrinter::new(
    "cluster.karmada.io",
    "Cluster",
    &[
        NAME,
        Column::text("Version", ColumnDescription::Text("KubernetesVersion represents version of the member cluster.")),
        Column::text(
            "Mode",
            ColumnDescription::Text("SyncMode describes how a cluster sync resources from karmada control plane."),
        ),
        Column::text(
            "Ready",
            ColumnDescription::Text("The aggregate readiness state of this cluster for accepting workloads."),
        ),
        AGE,
        Column::text(
            "Zones",
            ColumnDescription::Text(
                "Zones represents the failure zones(also called availability zones) of the member cluster. The zones are presented as a slice to support the case that cluster runs across multiple failure zones.",
            ),
        )
        .wide(),
        Column::text(
            "Region",
            ColumnDescription::Text("Region represents the region of the member cluster locate in."),
        )
        .wide(),
        Column::text(
            "Provider",
            ColumnDescription::Text("Provider represents the cloud provider name of the member cluster."),
        )
        .wide(),
        Column::text("API-Endpoint", ColumnDescription::Text("The API endpoint of the member cluster.")).wide(),
        Column::text("Proxy-URL", ColumnDescription::Text("ProxyURL is the proxy URL for the cluster.")).wide(),
    ],
    cluster_cells,
);

fn cluster_cells(cluster: &Value) -> Vec<Cell> {
    let text = |pointer: &str| cluster.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let conditions = cluster.pointer("/status/conditions").and_then(Value::as_array);
    let ready = conditions.into_iter().flatten().find(|c| c["type"] == "Ready").and_then(|c| c["status"].as_str());
    let zones = cluster.pointer("/spec/zones").and_then(Value::as_array);
    let zones: Vec<&str> = zones.into_iter().flatten().filter_map(Value::as_str).collect();
    let or_none = |text: &str| Cell::from(if text.is_empty() { "<none>" } else { text });
    vec![
        fields::name(cluster),
        text("/status/kubernetesVersion").into(),
        text("/spec/syncMode").into(),
        ready.unwrap_or("Unknown").into(),
        fields::age(cluster),
        or_none(&zones.join(",")),
        or_none(text("/spec/region")),
        or_none(text("/spec/provider")),
        text("/spec/apiEndpoint").into(),
        or_none(text("/spec/proxyURL")),
    ]
}
