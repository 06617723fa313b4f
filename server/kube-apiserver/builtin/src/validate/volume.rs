//! Validation of a pod's volumes.

use std::collections::BTreeSet;

use super::mount::{self, Volumes};
use super::{
    Errors, FieldError, Value, at, container, is_set, items, json, number, text, validate_dns1123_label,
    validate_dns1123_subdomain, volume_sources,
};

/// Volume sources in the order of validation: the first one that is set is validated, each further one is an error.
const SOURCES: [&str; 29] = [
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "flocker",
    "persistentVolumeClaim",
    "rbd",
    "cinder",
    "cephfs",
    "quobyte",
    "downwardAPI",
    "fc",
    "flexVolume",
    "configMap",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "storageos",
    "projected",
    "scaleIO",
    "csi",
    "ephemeral",
    "image",
];
const MODE_ERROR: &str = "must be a number between 0 and 0777 (octal), both inclusive";

/// Validates volumes; returns the valid ones. `pod` is the name of the pod, `None` for templates.
pub(super) fn validate_volumes(e: &mut Errors, spec: &Value, pod: Option<&str>, path: &str) -> Volumes {
    let mut volumes = Volumes::default();
    let pod = pod.filter(|name| !name.is_empty());
    let ephemeral_claims: Vec<String> = items(spec, "volumes")
        .iter()
        .filter(|volume| is_set(volume, "ephemeral"))
        .filter_map(|volume| Some(format!("{}-{}", pod?, text(volume, "name"))))
        .collect();
    for (index, volume) in items(spec, "volumes").iter().enumerate() {
        let path = format!("{path}.volumes[{index}]");
        let mut volume_errors = Errors::default();
        validate_source(&mut volume_errors, volume, pod, &path);
        let name = text(volume, "name");
        if name.is_empty() {
            volume_errors.required(format!("{path}.name"), "");
        } else {
            volume_errors.push_name_errors(&format!("{path}.name"), name, validate_dns1123_label(name));
        }
        if volumes.names.contains(name) {
            volume_errors.duplicate(format!("{path}.name"), &json!(name));
        }
        if volume_errors.0.is_empty() {
            volumes.names.insert(name.to_owned());
            if is_set(volume, "persistentVolumeClaim") || is_set(volume, "ephemeral") {
                volumes.claims.insert(name.to_owned());
            }
            if is_set(volume, "image") {
                volumes.images.insert(name.to_owned());
            }
        }
        let claim = text(volume, "persistentVolumeClaim.claimName");
        if ephemeral_claims.iter().any(|name| name == claim) {
            let reason = "must not reference a PVC that gets created for an ephemeral volume";
            volume_errors.invalid(format!("{path}.persistentVolumeClaim.claimName"), &json!(claim), reason);
        }
        e.0.extend(volume_errors.0);
    }
    volumes
}

fn validate_source(e: &mut Errors, volume: &Value, pod: Option<&str>, path: &str) {
    let mut has_source = is_set(volume, "emptyDir");
    let limit = super::resources::amount(at(volume, "emptyDir.sizeLimit"));
    if limit.is_some_and(|limit| limit.sign() < 0) {
        e.forbidden(format!("{path}.emptyDir.sizeLimit"), "SizeLimit field must be a valid resource quantity");
    }
    for kind in SOURCES.into_iter().filter(|kind| is_set(volume, kind)) {
        if has_source {
            // kube-apiserver misspells two kinds.
            let reported_kind = match kind {
                "cephfs" => "cephFS",
                "downwardAPI" => "downwarAPI",
                kind => kind,
            };
            e.forbidden(format!("{path}.{reported_kind}"), "may not specify more than 1 volume type");
            continue;
        }
        has_source = true;
        let reported_kind = if kind == "gcePersistentDisk" { "persistentDisk" } else { kind };
        validate_volume_source(e, kind, at(volume, kind), pod.is_some(), &format!("{path}.{reported_kind}"));
        if kind == "ephemeral"
            && let Some(pod) = pod
        {
            let name = text(volume, "name");
            let claim = format!("{pod}-{name}");
            for reason in validate_dns1123_subdomain(&claim).into_iter().filter(|_| !name.is_empty()) {
                e.invalid(format!("{path}.name"), &json!(name), format!("PVC name {claim:?}: {reason}"));
            }
        }
    }
    if !has_source {
        e.required(path, "must specify a volume type");
    }
}

/// Requires fields of a volume source, for pods and persistent volumes.
pub(super) fn require_fields(e: &mut Errors, source: &Value, fields: &[&str], path: &str) {
    for field in fields.iter().filter(|field| text(source, field).is_empty()) {
        e.required(format!("{path}.{field}"), "");
    }
}

fn validate_volume_source(e: &mut Errors, kind: &str, source: &Value, in_pod: bool, path: &str) {
    match kind {
        "secret" => {
            require_fields(e, source, &["secretName"], path);
            validate_mode(e, source, "defaultMode", path);
            validate_key_items(e, source, path);
        }
        "configMap" => {
            require_fields(e, source, &["name"], path);
            validate_mode(e, source, "defaultMode", path);
            validate_key_items(e, source, path);
        }
        "persistentVolumeClaim" => require_fields(e, source, &["claimName"], path),
        "gitRepo" => {
            require_fields(e, source, &["repository"], path);
            mount::validate_local_descending_path(e, &format!("{path}.directory"), text(source, "directory"));
        }
        "azureFile" => require_fields(e, source, &["secretName", "shareName"], path),
        "csi" => {
            validate_driver_name(e, at(source, "driver"), &format!("{path}.driver"));
            if is_set(source, "nodePublishSecretRef") {
                require_fields(e, source, &["nodePublishSecretRef.name"], path);
            }
        }
        "downwardAPI" => {
            validate_mode(e, source, "defaultMode", path);
            validate_downward_api(e, source, path);
        }
        "projected" => validate_projected(e, source, path),
        "ephemeral" => match at(source, "volumeClaimTemplate") {
            Value::Null => e.required(format!("{path}.volumeClaimTemplate"), ""),
            template => {
                let path = format!("{path}.volumeClaimTemplate");
                let metadata = at(template, "metadata");
                let all = crowsnest_registry::validation::validate_annotations(
                    metadata.get("annotations"),
                    &format!("{path}.metadata.annotations"),
                );
                e.0.extend(all);
                e.0.extend(super::validate_labels(metadata.get("labels"), &format!("{path}.metadata.labels")));
                super::storage::validate_claim_spec(e, at(template, "spec"), &format!("{path}.spec"));
            }
        },
        "image" => {
            if in_pod {
                require_fields(e, source, &["reference"], path);
            }
            e.one_of(&format!("{path}.pullPolicy"), at(source, "pullPolicy"), &["Always", "IfNotPresent", "Never"]);
        }
        shared => volume_sources::validate_shared_source(e, shared, source, path),
    }
}

/// `ValidateCSIDriverName`.
pub(super) fn validate_driver_name(e: &mut Errors, name: &Value, path: &str) {
    let name = name.as_str().unwrap_or_default();
    if name.is_empty() {
        return e.required(path, "");
    }
    if name.len() > 63 {
        e.push(FieldError::too_long(path, 63));
    }
    e.push_name_errors(path, name, validate_dns1123_subdomain(&name.to_lowercase()));
}

fn validate_mode(e: &mut Errors, source: &Value, field: &str, path: &str) {
    if number(source, field).is_some_and(|mode| !(0..=0o777).contains(&mode)) {
        e.invalid(format!("{path}.{field}"), at(source, field), MODE_ERROR);
    }
}

fn validate_relative_path(e: &mut Errors, field: String, value: &Value) {
    let path = value.as_str().unwrap_or_default();
    if path.is_empty() {
        e.required(field, "");
        return;
    }
    if path.starts_with('/') {
        e.invalid(&field, value, "must be a relative path");
    }
    if path.split('/').any(|part| part == "..") {
        e.invalid(&field, value, "must not contain '..'");
    }
    if path.starts_with("..") && !path.starts_with("../") {
        e.invalid(&field, value, "must not start with '..'");
    }
}

fn validate_key_items(e: &mut Errors, source: &Value, path: &str) {
    for (index, item) in items(source, "items").iter().enumerate() {
        let path = format!("{path}.items[{index}]");
        if text(item, "key").is_empty() {
            e.required(format!("{path}.key"), "");
        }
        validate_relative_path(e, format!("{path}.path"), at(item, "path"));
        validate_mode(e, item, "mode", &path);
    }
}

/// Validates a downward API source. Errors name the source instead of the file, as in kube-apiserver.
fn validate_downward_api(e: &mut Errors, source: &Value, path: &str) {
    for item in items(source, "items") {
        validate_relative_path(e, format!("{path}.path"), at(item, "path"));
        match (is_set(item, "fieldRef"), is_set(item, "resourceFieldRef")) {
            (true, both) => {
                container::validate_object_field_selector(
                    e,
                    at(item, "fieldRef"),
                    &["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"],
                    &format!("{path}.fieldRef"),
                );
                if both {
                    let reason = "fieldRef and resourceFieldRef can not be specified simultaneously";
                    e.invalid(path, &json!("resource"), reason);
                }
            }
            (false, true) => {
                let reference = at(item, "resourceFieldRef");
                container::validate_resource_field_ref(e, reference, true, &format!("{path}.resourceFieldRef"));
            }
            (false, false) => e.required(path, "one of fieldRef and resourceFieldRef is required"),
        }
        validate_mode(e, item, "mode", path);
    }
}

fn validate_projected(e: &mut Errors, source: &Value, path: &str) {
    validate_mode(e, source, "defaultMode", path);
    let mut target_paths: BTreeSet<&str> = BTreeSet::new();
    for (index, part) in items(source, "sources").iter().enumerate() {
        let part_path = format!("{path}.sources[{index}]");
        let mut sources = 0;
        for kind in ["secret", "configMap", "downwardAPI", "serviceAccountToken", "clusterTrustBundle"] {
            if is_set(part, kind) {
                sources += 1;
                validate_projection(e, kind, at(part, kind), path, &format!("{part_path}.{kind}"));
                for item in items(part, &format!("{kind}.items")) {
                    let target = text(item, "path");
                    if !target.is_empty() && !target_paths.insert(target) {
                        let reported_value =
                            if kind == "downwardAPI" { target } else { text(part, &format!("{kind}.name")) };
                        e.invalid(path, &json!(reported_value), "conflicting duplicate paths");
                    }
                }
            }
        }
        if is_set(part, "podCertificate") {
            sources += 1;
        }
        if sources > 1 {
            e.forbidden(part_path, "may not specify more than 1 volume type per source");
        }
    }
}

fn validate_projection(e: &mut Errors, kind: &str, part: &Value, source_path: &str, path: &str) {
    match kind {
        "secret" | "configMap" => {
            require_fields(e, part, &["name"], path);
            validate_key_items(e, part, path);
        }
        "downwardAPI" => validate_downward_api(e, part, path),
        "serviceAccountToken" => {
            let seconds = number(part, "expirationSeconds").unwrap_or(0);
            let field = format!("{path}.expirationSeconds");
            if seconds < 600 {
                e.invalid(&field, &json!(seconds), "may not specify a duration less than 10 minutes");
            }
            if seconds > 1 << 32 {
                e.invalid(&field, &json!(seconds), "may not specify a duration larger than 2^32 seconds");
            }
            validate_relative_path(e, format!("{source_path}.path"), at(part, "path"));
        }
        _ => {
            let (name, signer) = (is_set(part, "name"), is_set(part, "signerName"));
            match (name, signer) {
                (true, true) => e.invalid(path, part, "only one of name and signerName may be used"),
                (false, false) => e.required(path, "either name or signerName must be specified"),
                _ => {}
            }
            validate_relative_path(e, format!("{path}.path"), at(part, "path"));
        }
    }
}
