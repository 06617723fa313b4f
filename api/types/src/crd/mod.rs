//! CustomResourceDefinitions of all kinds that are stored in the control plane: Karmada's, the multi-cluster
//! services API, and the internal group of the aggregated APIs.
//!
//! Schemas are derived from the types, so they have the same fields; `structural` converts schemars' output to the
//! structural schemas that API servers require. Installed by the server at startup and by `crowsnest init`.

mod definition;
mod markers;
mod mismatch;
mod structural;

pub use definition::Webhook;
pub use mismatch::find_type_mismatch;

use serde_json::Value;

use crate::{apps, autoscaling, config, multicluster, networking, policy, remedy, sink, storage, work};
use definition::{Column, Definition, Version};

const AGE: Column = Column { name: "AGE", path: ".metadata.creationTimestamp", value_type: "date", description: "" };
const SCHEDULED: &str = r#".status.conditions[?(@.type=="Scheduled")].status"#;
const FULLY_APPLIED: &str = r#".status.conditions[?(@.type=="FullyApplied")].status"#;
const APPLIED: &str = r#".status.conditions[?(@.type=="Applied")].status"#;

const fn string_column(name: &'static str, path: &'static str) -> Column {
    Column { name, path, value_type: "string", description: "" }
}

const fn integer_column(name: &'static str, path: &'static str) -> Column {
    Column { name, path, value_type: "integer", description: "" }
}

fn policies() -> Vec<Definition> {
    let columns = [
        string_column("CONFLICT-RESOLUTION", ".spec.conflictResolution"),
        string_column("PRIORITY", ".spec.priority"),
        AGE,
    ]
    .to_vec();
    vec![
        Definition::new(
            Version::for_kind::<policy::PropagationPolicy>().with_required(&["spec"]).with_columns(columns.clone()),
        )
        .with_short_name("pp"),
        Definition::new(
            Version::for_kind::<policy::ClusterPropagationPolicy>().with_required(&["spec"]).with_columns(columns),
        )
        .with_short_name("cpp"),
        Definition::new(Version::for_kind::<policy::OverridePolicy>().with_required(&["spec"])).with_short_name("op"),
        Definition::new(Version::for_kind::<policy::ClusterOverridePolicy>().with_required(&["spec"]))
            .with_short_name("cop"),
        Definition::new(
            Version::for_kind::<policy::FederatedResourceQuota>().with_required(&["spec"]).with_status().with_columns(
                vec![string_column("OVERALL", ".status.overall"), string_column("OVERALL_USED", ".status.overallUsed")],
            ),
        ),
        Definition::new(Version::for_kind::<policy::ClusterTaintPolicy>().with_required(&["spec"]))
            .without_categories(),
    ]
}

fn works() -> Vec<Definition> {
    let columns = vec![string_column("SCHEDULED", SCHEDULED), string_column("FULLYAPPLIED", FULLY_APPLIED), AGE];
    vec![
        Definition::new(
            Version::for_kind::<work::ResourceBinding>()
                .with_required(&["spec"])
                .with_status()
                .with_columns(columns.clone()),
        )
        .with_version(Version::for_kind::<work::v1alpha1::ResourceBinding>().with_required(&["spec"]).with_status())
        .with_short_name("rb"),
        Definition::new(
            Version::for_kind::<work::ClusterResourceBinding>()
                .with_required(&["spec"])
                .with_status()
                .with_columns(columns),
        )
        .with_version(
            Version::for_kind::<work::v1alpha1::ClusterResourceBinding>().with_required(&["spec"]).with_status(),
        )
        .with_short_name("crb"),
        Definition::new(Version::for_kind::<work::Work>().with_required(&["spec"]).with_status().with_columns(vec![
            string_column("WORKLOAD-KIND", ".spec.workload.manifests[*].kind"),
            string_column("APPLIED", APPLIED),
            AGE,
        ]))
        .with_short_name("wk"),
    ]
}

fn interpreters() -> Vec<Definition> {
    vec![
        Definition::new(
            Version::for_kind::<config::ResourceInterpreterCustomization>().with_required(&["spec"]).with_columns(
                vec![
                    string_column("TARGET-API-VERSION", ".spec.target.apiVersion"),
                    string_column("TARGET-KIND", ".spec.target.kind"),
                    AGE,
                ],
            ),
        )
        .with_short_name("ric"),
        Definition::new(
            Version::for_kind::<config::ResourceInterpreterWebhookConfiguration>().with_required(&["webhooks"]),
        ),
    ]
}

fn autoscalers() -> Vec<Definition> {
    let target = [
        string_column("REFERENCE-KIND", ".spec.scaleTargetRef.kind"),
        string_column("REFERENCE-NAME", ".spec.scaleTargetRef.name"),
    ];
    let bounds = [
        integer_column("MINPODS", ".spec.minReplicas"),
        integer_column("MAXPODS", ".spec.maxReplicas"),
        integer_column("REPLICAS", ".status.currentReplicas"),
    ];
    vec![
        Definition::new(
            Version::for_kind::<autoscaling::FederatedHPA>()
                .with_required(&["spec"])
                .with_status()
                .with_columns([&target[..], &bounds[..], &[AGE]].concat()),
        )
        .with_short_name("fhpa"),
        Definition::new(
            Version::for_kind::<autoscaling::CronFederatedHPA>()
                .with_required(&["spec"])
                .with_status()
                .with_columns([&target[..], &[AGE]].concat()),
        )
        .with_short_name("cronfhpa"),
    ]
}

fn services() -> Vec<Definition> {
    let age = Column { name: "Age", ..AGE };
    vec![
        Definition::new(Version::for_kind::<networking::MultiClusterService>().with_required(&["spec"]).with_status())
            .with_short_name("mcs"),
        Definition::new(Version::for_kind::<networking::MultiClusterIngress>().with_status()).with_short_name("mci"),
        Definition::new(Version::for_kind::<multicluster::ServiceExport>().with_status().with_columns(vec![age]))
            .with_short_name("svcex")
            .without_categories(),
        Definition::new(Version::for_kind::<multicluster::ServiceImport>().with_status().with_columns(vec![
            Column { description: "The type of this ServiceImport", ..string_column("Type", ".spec.type") },
            Column { description: "The VIP for this ServiceImport", ..string_column("IP", ".spec.ips") },
            age,
        ]))
        .with_short_name("svcim")
        .without_categories(),
    ]
}

fn rebalancers_and_remedies() -> Vec<Definition> {
    vec![
        Definition::new(Version::for_kind::<apps::WorkloadRebalancer>().with_required(&["spec"]).with_status())
            .without_categories(),
        Definition::new(Version::for_kind::<remedy::Remedy>().with_required(&["spec"])),
    ]
}

fn sinks() -> Vec<Definition> {
    let columns = vec![
        string_column("ADDRESS", ".spec.address"),
        string_column("CONNECTED", r#".status.conditions[?(@.type=="Connected")].status"#),
        string_column("SYNCED", r#".status.conditions[?(@.type=="Synced")].status"#),
        integer_column("LAG", ".status.lag"),
        AGE,
    ];
    vec![
        Definition::new(
            Version::for_kind::<sink::GraphSink>().with_required(&["spec"]).with_status().with_columns(columns),
        )
        .without_categories(),
    ]
}

fn stored_kinds() -> Vec<Definition> {
    vec![
        Definition::new(Version::for_kind::<storage::StoredCluster>().with_required(&["spec"]).with_lenient_status())
            .without_categories(),
        // Karmada's server documents required fields of a registry but accepts objects without them.
        Definition::new(
            Version::for_kind::<storage::StoredResourceRegistry>().without_required_fields().with_lenient_status(),
        )
        .without_categories(),
        Definition::new(Version::for_kind::<storage::StoredSearch>().with_required(&["spec"])).without_categories(),
    ]
}

/// All CustomResourceDefinitions. With a webhook, it converts the versions of bindings; without one, only their
/// storage version is served.
pub fn crds(conversion: Option<&Webhook>) -> Vec<Value> {
    [
        policies(),
        works(),
        interpreters(),
        autoscalers(),
        services(),
        rebalancers_and_remedies(),
        sinks(),
        stored_kinds(),
    ]
    .into_iter()
    .flatten()
    .map(|definition| definition.manifest(conversion))
    .collect()
}

/// The structural schema of a kind, as in a CustomResourceDefinition. `required` are the required top-level fields. The
/// aggregated API describes its kinds with it.
pub fn schema<K: crate::Kind>(required: &'static [&'static str]) -> Value {
    Version::for_kind::<K>().with_required(required).schema()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes one line per field, so that a review of the snapshot shows the changed fields.
    fn outline(path: &str, schema: &Value, required: bool, lines: &mut Vec<String>) {
        let mut notes = Vec::new();
        for (key, value) in schema.as_object().into_iter().flatten() {
            if !matches!(key.as_str(), "description" | "properties" | "items" | "additionalProperties" | "required") {
                notes.push(format!("{key}={value}"));
            }
        }
        lines.push(format!("{path}{} {}", if required { "*" } else { "" }, notes.join(" ")));
        let names: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            outline(&format!("{path}.{name}"), property, names.contains(&name.as_str()), lines);
        }
        for (key, mark) in [("items", "[]"), ("additionalProperties", "{}")] {
            if schema[key].is_object() {
                outline(&format!("{path}{mark}"), &schema[key], false, lines);
            }
        }
    }

    #[test]
    fn manifests() {
        let webhook = Webhook { url: "https://webhook.example:443".into(), ca_bundle: "Q0E=".into() };
        for crd in crds(Some(&webhook)) {
            let name = crd["metadata"]["name"].as_str().unwrap().to_owned();
            let mut manifest = crd.clone();
            let mut lines = Vec::new();
            for version in manifest["spec"]["versions"].as_array_mut().unwrap() {
                let schema = version["schema"].take();
                outline(version["name"].as_str().unwrap(), &schema["openAPIV3Schema"], false, &mut lines);
            }
            insta::assert_snapshot!(
                name,
                format!("{}\n\n{}\n", serde_json::to_string_pretty(&manifest).unwrap(), lines.join("\n"))
            );
        }
    }

    #[test]
    fn required_fields_are_sorted() {
        let taints =
            crds(None).into_iter().find(|crd| crd["spec"]["names"]["plural"] == "clustertaintpolicies").unwrap();
        let spec = &taints["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        let taint = &spec["properties"]["taints"]["items"];
        assert_eq!(taint["required"], serde_json::json!(["effect", "key"]));
    }

    #[test]
    fn required_fields_of_registries_are_only_in_the_served_schema() {
        let crds = crds(None);
        let registry = |crd: &&Value| crd["spec"]["names"]["plural"] == "storedresourceregistries";
        let stored = crds.iter().find(registry).unwrap()["spec"]["versions"][0]["schema"].to_string();
        assert!(!stored.contains("\"required\""), "{stored}");
        let served = schema::<crate::search::ResourceRegistry>(&[]);
        assert_eq!(served["properties"]["spec"]["required"], serde_json::json!(["targetCluster", "resourceSelectors"]));
    }

    #[test]
    fn without_a_webhook_only_the_stored_version_is_served() {
        for crd in crds(None) {
            assert_eq!(crd["spec"]["versions"].as_array().unwrap().len(), 1, "{}", crd["metadata"]["name"]);
            assert_eq!(crd["spec"]["conversion"]["strategy"], "None");
        }
    }
}
