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
pub use mismatch::mismatch;

use serde_json::Value;

use crate::{apps, autoscaling, config, multicluster, networking, policy, remedy, sink, storage, work};
use definition::{Column, Definition, Version};

const AGE: Column = Column { name: "AGE", path: ".metadata.creationTimestamp", of: "date", description: "" };
const SCHEDULED: &str = r#".status.conditions[?(@.type=="Scheduled")].status"#;
const FULLY_APPLIED: &str = r#".status.conditions[?(@.type=="FullyApplied")].status"#;
const APPLIED: &str = r#".status.conditions[?(@.type=="Applied")].status"#;

const fn text(name: &'static str, path: &'static str) -> Column {
    Column { name, path, of: "string", description: "" }
}

const fn number(name: &'static str, path: &'static str) -> Column {
    Column { name, path, of: "integer", description: "" }
}

fn policies() -> Vec<Definition> {
    let columns =
        [text("CONFLICT-RESOLUTION", ".spec.conflictResolution"), text("PRIORITY", ".spec.priority"), AGE].to_vec();
    vec![
        Definition::of(Version::of::<policy::PropagationPolicy>().requires(&["spec"]).columns(columns.clone()))
            .short("pp"),
        Definition::of(Version::of::<policy::ClusterPropagationPolicy>().requires(&["spec"]).columns(columns))
            .short("cpp"),
        Definition::of(Version::of::<policy::OverridePolicy>().requires(&["spec"])).short("op"),
        Definition::of(Version::of::<policy::ClusterOverridePolicy>().requires(&["spec"])).short("cop"),
        Definition::of(
            Version::of::<policy::FederatedResourceQuota>()
                .requires(&["spec"])
                .status()
                .columns(vec![text("OVERALL", ".status.overall"), text("OVERALL_USED", ".status.overallUsed")]),
        ),
        Definition::of(Version::of::<policy::ClusterTaintPolicy>().requires(&["spec"])).uncategorised(),
    ]
}

fn works() -> Vec<Definition> {
    let columns = vec![text("SCHEDULED", SCHEDULED), text("FULLYAPPLIED", FULLY_APPLIED), AGE];
    vec![
        Definition::of(Version::of::<work::ResourceBinding>().requires(&["spec"]).status().columns(columns.clone()))
            .also(Version::of::<work::v1alpha1::ResourceBinding>().requires(&["spec"]).status())
            .short("rb"),
        Definition::of(Version::of::<work::ClusterResourceBinding>().requires(&["spec"]).status().columns(columns))
            .also(Version::of::<work::v1alpha1::ClusterResourceBinding>().requires(&["spec"]).status())
            .short("crb"),
        Definition::of(Version::of::<work::Work>().requires(&["spec"]).status().columns(vec![
            text("WORKLOAD-KIND", ".spec.workload.manifests[*].kind"),
            text("APPLIED", APPLIED),
            AGE,
        ]))
        .short("wk"),
    ]
}

fn interpreters() -> Vec<Definition> {
    vec![
        Definition::of(Version::of::<config::ResourceInterpreterCustomization>().requires(&["spec"]).columns(vec![
            text("TARGET-API-VERSION", ".spec.target.apiVersion"),
            text("TARGET-KIND", ".spec.target.kind"),
            AGE,
        ]))
        .short("ric"),
        Definition::of(Version::of::<config::ResourceInterpreterWebhookConfiguration>().requires(&["webhooks"])),
    ]
}

fn autoscalers() -> Vec<Definition> {
    let target =
        [text("REFERENCE-KIND", ".spec.scaleTargetRef.kind"), text("REFERENCE-NAME", ".spec.scaleTargetRef.name")];
    let bounds = [
        number("MINPODS", ".spec.minReplicas"),
        number("MAXPODS", ".spec.maxReplicas"),
        number("REPLICAS", ".status.currentReplicas"),
    ];
    vec![
        Definition::of(
            Version::of::<autoscaling::FederatedHPA>()
                .requires(&["spec"])
                .status()
                .columns([&target[..], &bounds[..], &[AGE]].concat()),
        )
        .short("fhpa"),
        Definition::of(
            Version::of::<autoscaling::CronFederatedHPA>()
                .requires(&["spec"])
                .status()
                .columns([&target[..], &[AGE]].concat()),
        )
        .short("cronfhpa"),
    ]
}

fn services() -> Vec<Definition> {
    let age = Column { name: "Age", ..AGE };
    vec![
        Definition::of(Version::of::<networking::MultiClusterService>().requires(&["spec"]).status()).short("mcs"),
        Definition::of(Version::of::<networking::MultiClusterIngress>().status()).short("mci"),
        Definition::of(Version::of::<multicluster::ServiceExport>().status().columns(vec![age]))
            .short("svcex")
            .uncategorised(),
        Definition::of(Version::of::<multicluster::ServiceImport>().status().columns(vec![
            Column { description: "The type of this ServiceImport", ..text("Type", ".spec.type") },
            Column { description: "The VIP for this ServiceImport", ..text("IP", ".spec.ips") },
            age,
        ]))
        .short("svcim")
        .uncategorised(),
    ]
}

fn others() -> Vec<Definition> {
    vec![
        Definition::of(Version::of::<apps::WorkloadRebalancer>().requires(&["spec"]).status()).uncategorised(),
        Definition::of(Version::of::<remedy::Remedy>().requires(&["spec"])),
    ]
}

fn sinks() -> Vec<Definition> {
    let columns = vec![
        text("ADDRESS", ".spec.address"),
        text("CONNECTED", r#".status.conditions[?(@.type=="Connected")].status"#),
        text("SYNCED", r#".status.conditions[?(@.type=="Synced")].status"#),
        number("LAG", ".status.lag"),
        AGE,
    ];
    vec![Definition::of(Version::of::<sink::GraphSink>().requires(&["spec"]).status().columns(columns)).uncategorised()]
}

fn internals() -> Vec<Definition> {
    vec![
        Definition::of(Version::of::<storage::StoredCluster>().requires(&["spec"]).unlimited_status()).uncategorised(),
        // Karmada's server documents required fields of a registry but accepts objects without them.
        Definition::of(Version::of::<storage::StoredResourceRegistry>().lenient().unlimited_status()).uncategorised(),
        Definition::of(Version::of::<storage::StoredSearch>().requires(&["spec"])).uncategorised(),
    ]
}

/// All CustomResourceDefinitions. With a webhook, it converts the versions of bindings; without one, only their
/// storage version is served.
pub fn crds(conversion: Option<&Webhook>) -> Vec<Value> {
    [policies(), works(), interpreters(), autoscalers(), services(), others(), sinks(), internals()]
        .into_iter()
        .flatten()
        .map(|definition| definition.manifest(conversion))
        .collect()
}

/// The structural schema of a kind's top level, as in a definition. The aggregated API uses it to describe its
/// kinds.
pub fn schema<K: crate::Kind>(required: &'static [&'static str]) -> Value {
    Version::of::<K>().requires(required).schema()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One line per field, so that a review shows what changed.
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
            let mut rest = crd.clone();
            let mut lines = Vec::new();
            for version in rest["spec"]["versions"].as_array_mut().unwrap() {
                let schema = version["schema"].take();
                outline(version["name"].as_str().unwrap(), &schema["openAPIV3Schema"], false, &mut lines);
            }
            insta::assert_snapshot!(
                name,
                format!("{}\n\n{}\n", serde_json::to_string_pretty(&rest).unwrap(), lines.join("\n"))
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
