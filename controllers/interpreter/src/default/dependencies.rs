//! Dependencies of workloads: objects that a pod template refers to, and objects that belong to an imported Service.

use std::collections::{BTreeMap, BTreeSet};

use crowsnest_apimachinery::field::{self, FieldError};
use crowsnest_apimachinery::names::format;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use serde_json::Value;

use crowsnest_apimachinery::unstructured::{at, name, namespace, text};
use crowsnest_plan::dependencies::Dependency;

/// Validates dependencies from a user-defined interpreter, with Karmada's messages.
pub fn verify(dependencies: &[Dependency]) -> Result<(), String> {
    let mut errors = Vec::new();
    for (index, dependency) in dependencies.iter().enumerate() {
        let path = format!("dependencies[{index}]");
        if dependency.api_version.is_empty() {
            errors.push(FieldError::invalid(format!("{path}.apiVersion"), "", "missing required apiVersion"));
        }
        if dependency.kind.is_empty() {
            errors.push(FieldError::invalid(format!("{path}.kind"), "", "missing required kind"));
        }
        match &dependency.label_selector {
            Some(selector) => verify_selector(selector, &format!("{path}.labelSelector"), &mut errors),
            None if dependency.name.is_empty() => {
                let detail = "dependency can not leave name and labelSelector all empty";
                errors.push(FieldError::invalid(path, dependency, detail));
            }
            None => {}
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(field::aggregate(&errors)) }
}

/// Validates a label selector as Kubernetes does in its own objects.
fn verify_selector(selector: &LabelSelector, path: &str, errors: &mut Vec<FieldError>) {
    for (key, value) in selector.match_labels.iter().flatten() {
        let field = format!("{path}.matchLabels");
        let problems = format::validate_qualified_name(key).into_iter();
        errors.extend(problems.map(|problem| FieldError::invalid(&field, key, problem)));
        let problems = format::validate_label_value(value).into_iter();
        errors.extend(problems.map(|problem| FieldError::invalid(&field, value, problem)));
    }
    for (index, requirement) in selector.match_expressions.iter().flatten().enumerate() {
        verify_requirement(requirement, &format!("{path}.matchExpressions[{index}]"), errors);
    }
}

fn verify_requirement(requirement: &LabelSelectorRequirement, path: &str, errors: &mut Vec<FieldError>) {
    let values = requirement.values.as_deref().unwrap_or_default();
    match requirement.operator.as_str() {
        operator @ ("In" | "NotIn" | "Exists" | "DoesNotExist") => {
            errors.extend(FieldError::check_requirement_values(operator, !values.is_empty(), path));
        }
        other => {
            errors.push(FieldError::invalid(format!("{path}.operator"), other, "not a valid selector operator"));
        }
    }
    let problems = format::validate_qualified_name(&requirement.key).into_iter();
    errors.extend(problems.map(|problem| FieldError::invalid(format!("{path}.key"), &requirement.key, problem)));
    for (index, value) in values.iter().enumerate() {
        let problems = format::validate_label_value(value).into_iter();
        errors.extend(problems.map(|problem| FieldError::invalid(format!("{path}.values[{index}]"), value, problem)));
    }
}

/// Sorts and deduplicates dependencies, in the order of the binding's annotation.
pub fn sort_and_deduplicate(mut dependencies: Vec<Dependency>) -> Vec<Dependency> {
    let key = |dependency: &Dependency| {
        let selector = dependency.label_selector.as_ref().map(|selector| serde_json::json!(selector).to_string());
        (
            dependency.api_version.clone(),
            dependency.kind.clone(),
            dependency.namespace.clone(),
            dependency.name.clone(),
            selector,
        )
    };
    dependencies.sort_by_cached_key(key);
    dependencies.dedup();
    dependencies
}

/// Formats dependencies like Go's `%+v`, for events.
pub fn format_like_go(dependencies: &[Dependency]) -> String {
    let each: Vec<String> = dependencies
        .iter()
        .map(|dependency| {
            let Dependency { api_version, kind, namespace, name, label_selector } = dependency;
            let selector = label_selector.as_ref().map_or("nil".to_owned(), format_selector);
            format!(
                "{{APIVersion:{api_version} Kind:{kind} Namespace:{namespace} Name:{name} LabelSelector:{selector}}}"
            )
        })
        .collect();
    format!("[{}]", each.join(" "))
}

fn format_selector(selector: &LabelSelector) -> String {
    let labels = selector.match_labels.iter().flatten();
    let labels: String = labels.map(|(key, value)| format!("{key}: {value},")).collect();
    let expressions = selector.match_expressions.iter().flatten();
    let expressions: String = expressions
        .map(|expression| {
            let values = expression.values.as_deref().unwrap_or_default().join(" ");
            format!(
                "LabelSelectorRequirement{{Key:{},Operator:{},Values:[{values}],}},",
                expression.key, expression.operator
            )
        })
        .collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},\
         MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
}

pub fn from_pod_template(workload: &Value) -> Vec<Dependency> {
    from_pod_spec(at(workload, &["spec", "template", "spec"]), namespace(workload))
}

pub fn from_cron_job(workload: &Value) -> Vec<Dependency> {
    from_pod_spec(at(workload, &["spec", "jobTemplate", "spec", "template", "spec"]), namespace(workload))
}

pub fn from_pod(pod: &Value) -> Vec<Dependency> {
    from_pod_spec(pod.get("spec"), namespace(pod))
}

/// Dependencies of a StatefulSet's pods, without the PersistentVolumeClaims of its own templates, which are created per
/// pod in the member.
pub fn from_stateful_set(workload: &Value) -> Vec<Dependency> {
    let templates: BTreeSet<&str> =
        list(workload, &["spec", "volumeClaimTemplates"]).map(|claim| text(claim, &["metadata", "name"])).collect();
    let mut dependencies = from_pod_template(workload);
    dependencies.retain(|dependency| {
        dependency.kind != "PersistentVolumeClaim" || !templates.contains(dependency.name.as_str())
    });
    dependencies
}

pub fn from_ingress(ingress: &Value) -> Vec<Dependency> {
    list(ingress, &["spec", "tls"])
        .map(|tls| Dependency::core("Secret", namespace(ingress), text(tls, &["secretName"])))
        .collect()
}

/// The Service derived from the import, and its EndpointSlices.
pub fn from_service_import(import: &Value) -> Vec<Dependency> {
    let derived = format!("derived-{}", name(import));
    let labels = BTreeMap::from([("kubernetes.io/service-name".to_owned(), derived.clone())]);
    let slices = Dependency {
        api_version: "discovery.k8s.io/v1".to_owned(),
        kind: "EndpointSlice".to_owned(),
        namespace: namespace(import).to_owned(),
        name: String::new(),
        label_selector: Some(LabelSelector { match_labels: Some(labels), match_expressions: None }),
    };
    vec![Dependency::core("Service", namespace(import), &derived), slices]
}

fn list<'a>(value: &'a Value, path: &[&str]) -> impl Iterator<Item = &'a Value> {
    at(value, path).and_then(Value::as_array).into_iter().flatten()
}

/// ConfigMaps, Secrets, PersistentVolumeClaims and the service account that a pod spec refers to. The service account
/// `default` exists in every namespace and is omitted.
pub fn from_pod_spec(spec: Option<&Value>, namespace: &str) -> Vec<Dependency> {
    let Some(spec) = spec else { return Vec::new() };
    let mut names = References::default();
    for field in ["initContainers", "containers", "ephemeralContainers"] {
        list(spec, &[field]).for_each(|container| names.add_container(container));
    }
    list(spec, &["volumes"]).for_each(|volume| names.add_volume(volume));
    names.secrets.extend(list(spec, &["imagePullSecrets"]).map(|secret| text(secret, &["name"])));
    let account = text(spec, &["serviceAccountName"]);
    if account != "default" {
        names.accounts.insert(account);
    }
    names.into_dependencies(namespace)
}

/// Names of objects that a pod spec refers to, by kind.
#[derive(Default)]
struct References<'a> {
    config_maps: BTreeSet<&'a str>,
    secrets: BTreeSet<&'a str>,
    accounts: BTreeSet<&'a str>,
    claims: BTreeSet<&'a str>,
}

/// Paths of Secret names in volume sources.
const VOLUME_SECRETS: [&[&str]; 11] = [
    &["secret", "secretName"],
    &["azureFile", "secretName"],
    &["cephfs", "secretRef", "name"],
    &["cinder", "secretRef", "name"],
    &["flexVolume", "secretRef", "name"],
    &["rbd", "secretRef", "name"],
    &["scaleIO", "secretRef", "name"],
    &["iscsi", "secretRef", "name"],
    &["storageos", "secretRef", "name"],
    &["csi", "nodePublishSecretRef", "name"],
    &["csi", "nodeStageSecretRef", "name"],
];

impl<'a> References<'a> {
    fn add_container(&mut self, container: &'a Value) {
        for source in list(container, &["envFrom"]) {
            self.config_maps.insert(text(source, &["configMapRef", "name"]));
            self.secrets.insert(text(source, &["secretRef", "name"]));
        }
        for variable in list(container, &["env"]) {
            self.config_maps.insert(text(variable, &["valueFrom", "configMapKeyRef", "name"]));
            self.secrets.insert(text(variable, &["valueFrom", "secretKeyRef", "name"]));
        }
    }

    fn add_volume(&mut self, volume: &'a Value) {
        self.secrets.extend(VOLUME_SECRETS.iter().map(|path| text(volume, path)));
        self.config_maps.insert(text(volume, &["configMap", "name"]));
        self.claims.insert(text(volume, &["persistentVolumeClaim", "claimName"]));
        for source in list(volume, &["projected", "sources"]) {
            self.secrets.insert(text(source, &["secret", "name"]));
            self.config_maps.insert(text(source, &["configMap", "name"]));
        }
    }

    fn into_dependencies(self, namespace: &str) -> Vec<Dependency> {
        let of_kind = |kind: &'static str, names: BTreeSet<&'a str>| {
            names
                .into_iter()
                .filter(|name| !name.is_empty())
                .map(move |name| Dependency::core(kind, namespace, name))
                .collect::<Vec<_>>()
        };
        let mut dependencies = of_kind("ConfigMap", self.config_maps);
        dependencies.extend(of_kind("Secret", self.secrets));
        dependencies.extend(of_kind("ServiceAccount", self.accounts));
        dependencies.extend(of_kind("PersistentVolumeClaim", self.claims));
        dependencies
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn read(list: Value) -> Vec<Dependency> {
        serde_json::from_value(list).expect("dependencies")
    }

    #[rstest]
    #[case::by_name(json!([{"apiVersion": "v1", "kind": "Secret", "name": "s"}]), None)]
    #[case::by_selector(json!([{"apiVersion": "v1", "kind": "Secret", "labelSelector": {}}]), None)]
    #[case::no_version(
        json!([{"kind": "Secret", "name": "s"}]),
        Some("dependencies[0].apiVersion: Invalid value: \"\": missing required apiVersion")
    )]
    #[case::neither(
        json!([{"apiVersion": "v1", "kind": "Secret"}]),
        Some("dependencies[0]: Invalid value: {\"apiVersion\":\"v1\",\"kind\":\"Secret\"}: dependency can not leave name and \
              labelSelector all empty")
    )]
    #[case::several(
        json!([{"apiVersion": "v1", "kind": "Secret", "name": "s"}, {"name": "t"}]),
        Some("[dependencies[1].apiVersion: Invalid value: \"\": missing required apiVersion, \
              dependencies[1].kind: Invalid value: \"\": missing required kind]")
    )]
    #[case::good_selector(
        json!([{"apiVersion": "v1", "kind": "Secret", "labelSelector": {"matchLabels": {"a": ""},
            "matchExpressions": [{"key": "b", "operator": "Exists"}, {"key": "c", "operator": "In", "values": ["d"]}]}}]),
        None
    )]
    #[case::bad_selector(
        json!([{"apiVersion": "v1", "kind": "Secret", "labelSelector": {
            "matchExpressions": [{"key": "a", "operator": "In"}, {"key": "a", "operator": "Near", "values": ["b"]},
                {"key": "a", "operator": "Exists", "values": ["b"]}]}}]),
        Some("[dependencies[0].labelSelector.matchExpressions[0].values: Required value: must be specified when `operator` \
              is 'In' or 'NotIn', dependencies[0].labelSelector.matchExpressions[1].operator: Invalid value: \"Near\": not a \
              valid selector operator, dependencies[0].labelSelector.matchExpressions[2].values: Forbidden: may not be \
              specified when `operator` is 'Exists' or 'DoesNotExist']")
    )]
    #[case::bad_label(
        json!([{"apiVersion": "v1", "kind": "Secret", "name": "s", "labelSelector": {"matchLabels": {"a": "b c"}}}]),
        Some("dependencies[0].labelSelector.matchLabels: Invalid value: \"b c\": a valid label must be an empty string or \
              consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character \
              (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is \
              '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')")
    )]
    fn dependencies_are_verified(#[case] list: Value, #[case] expected_error: Option<&str>) {
        assert_eq!(verify(&read(list)).err().as_deref(), expected_error);
    }

    #[test]
    fn dependencies_are_sorted_and_unique() {
        let dependency_json = |version: &str, kind: &str, namespace: &str, name: &str| json!({"apiVersion": version, "kind": kind, "namespace": namespace, "name": name});
        let order = [
            dependency_json("apps/v1", "Deployment", "b", "z"),
            dependency_json("v1", "ConfigMap", "b", "b"),
            dependency_json("v1", "Secret", "a", "c"),
            dependency_json("v1", "Secret", "b", "a"),
            dependency_json("v1", "Secret", "b", "b"),
        ];
        let mixed = [4, 2, 0, 3, 4, 1, 0].map(|index: usize| order[index].clone());
        assert_eq!(json!(sort_and_deduplicate(read(json!(mixed)))), json!(order));
    }
}
