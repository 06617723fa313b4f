//! Validation of a pod's volumes.

use std::collections::BTreeSet;

use super::mount::{self, Volumes};
use super::{
    Errors, FieldError, Value, at, container, dns1123_label, dns1123_subdomain, is_set, items, json, number, text,
    volume_sources,
};

/// In the order of validation: the first source counts, further ones are errors.
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
const MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";

/// Validates volumes; returns the valid ones. `pod` is the name of the pod, `None` for templates.
pub(super) fn list(e: &mut Errors, spec: &Value, pod: Option<&str>, path: &str) -> Volumes {
    let mut volumes = Volumes::default();
    let pod = pod.filter(|name| !name.is_empty());
    let made: Vec<String> = items(spec, "volumes")
        .iter()
        .filter(|volume| is_set(volume, "ephemeral"))
        .filter_map(|volume| Some(format!("{}-{}", pod?, text(volume, "name"))))
        .collect();
    for (index, volume) in items(spec, "volumes").iter().enumerate() {
        let path = format!("{path}.volumes[{index}]");
        let mut own = Errors::default();
        source(&mut own, volume, pod, &path);
        let name = text(volume, "name");
        if name.is_empty() {
            own.required(format!("{path}.name"), "");
        } else {
            own.names(&format!("{path}.name"), name, dns1123_label(name));
        }
        if volumes.names.contains(name) {
            own.duplicate(format!("{path}.name"), &json!(name));
        }
        if own.0.is_empty() {
            volumes.names.insert(name.to_owned());
            if is_set(volume, "persistentVolumeClaim") || is_set(volume, "ephemeral") {
                volumes.claims.insert(name.to_owned());
            }
            if is_set(volume, "image") {
                volumes.images.insert(name.to_owned());
            }
        }
        let claim = text(volume, "persistentVolumeClaim.claimName");
        if made.iter().any(|name| name == claim) {
            let why = "must not reference a PVC that gets created for an ephemeral volume";
            own.invalid(format!("{path}.persistentVolumeClaim.claimName"), &json!(claim), why);
        }
        e.0.extend(own.0);
    }
    volumes
}

fn source(e: &mut Errors, volume: &Value, pod: Option<&str>, path: &str) {
    let mut found = is_set(volume, "emptyDir");
    let limit = super::resources::amount(at(volume, "emptyDir.sizeLimit"));
    if limit.is_some_and(|limit| limit.sign() < 0) {
        e.forbidden(format!("{path}.emptyDir.sizeLimit"), "SizeLimit field must be a valid resource quantity");
    }
    for kind in SOURCES.into_iter().filter(|kind| is_set(volume, kind)) {
        if found {
            // kube-apiserver misspells two kinds.
            let shown = match kind {
                "cephfs" => "cephFS",
                "downwardAPI" => "downwarAPI",
                kind => kind,
            };
            e.forbidden(format!("{path}.{shown}"), "may not specify more than 1 volume type");
            continue;
        }
        found = true;
        let shown = if kind == "gcePersistentDisk" { "persistentDisk" } else { kind };
        one(e, kind, at(volume, kind), pod.is_some(), &format!("{path}.{shown}"));
        if kind == "ephemeral"
            && let Some(pod) = pod
        {
            let name = text(volume, "name");
            let claim = format!("{pod}-{name}");
            for why in dns1123_subdomain(&claim).into_iter().filter(|_| !name.is_empty()) {
                e.invalid(format!("{path}.name"), &json!(name), format!("PVC name {claim:?}: {why}"));
            }
        }
    }
    if !found {
        e.required(path, "must specify a volume type");
    }
}

/// Requires fields of a volume source, for pods and persistent volumes.
pub(super) fn needs(e: &mut Errors, source: &Value, fields: &[&str], path: &str) {
    for field in fields.iter().filter(|field| text(source, field).is_empty()) {
        e.required(format!("{path}.{field}"), "");
    }
}

fn one(e: &mut Errors, kind: &str, source: &Value, in_pod: bool, path: &str) {
    match kind {
        "secret" => {
            needs(e, source, &["secretName"], path);
            mode(e, source, "defaultMode", path);
            keys(e, source, path);
        }
        "configMap" => {
            needs(e, source, &["name"], path);
            mode(e, source, "defaultMode", path);
            keys(e, source, path);
        }
        "persistentVolumeClaim" => needs(e, source, &["claimName"], path),
        "gitRepo" => {
            needs(e, source, &["repository"], path);
            mount::descending(e, &format!("{path}.directory"), text(source, "directory"));
        }
        "azureFile" => needs(e, source, &["secretName", "shareName"], path),
        "csi" => {
            driver(e, at(source, "driver"), &format!("{path}.driver"));
            if is_set(source, "nodePublishSecretRef") {
                needs(e, source, &["nodePublishSecretRef.name"], path);
            }
        }
        "downwardAPI" => {
            mode(e, source, "defaultMode", path);
            downward(e, source, path);
        }
        "projected" => projected(e, source, path),
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
                super::storage::claim(e, at(template, "spec"), &format!("{path}.spec"));
            }
        },
        "image" => {
            if in_pod {
                needs(e, source, &["reference"], path);
            }
            e.one_of(&format!("{path}.pullPolicy"), at(source, "pullPolicy"), &["Always", "IfNotPresent", "Never"]);
        }
        shared => volume_sources::shared(e, shared, source, path),
    }
}

/// `ValidateCSIDriverName`.
pub(super) fn driver(e: &mut Errors, name: &Value, path: &str) {
    let name = name.as_str().unwrap_or_default();
    if name.is_empty() {
        return e.required(path, "");
    }
    if name.len() > 63 {
        e.push(FieldError::too_long(path, 63));
    }
    e.names(path, name, dns1123_subdomain(&name.to_lowercase()));
}

fn mode(e: &mut Errors, source: &Value, field: &str, path: &str) {
    if number(source, field).is_some_and(|mode| !(0..=0o777).contains(&mode)) {
        e.invalid(format!("{path}.{field}"), at(source, field), MODE);
    }
}

fn local_path(e: &mut Errors, field: String, value: &Value) {
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

fn keys(e: &mut Errors, source: &Value, path: &str) {
    for (index, item) in items(source, "items").iter().enumerate() {
        let path = format!("{path}.items[{index}]");
        if text(item, "key").is_empty() {
            e.required(format!("{path}.key"), "");
        }
        local_path(e, format!("{path}.path"), at(item, "path"));
        mode(e, item, "mode", &path);
    }
}

/// Validates a downward API source. Errors name the source instead of the file, as in kube-apiserver.
fn downward(e: &mut Errors, source: &Value, path: &str) {
    for item in items(source, "items") {
        local_path(e, format!("{path}.path"), at(item, "path"));
        match (is_set(item, "fieldRef"), is_set(item, "resourceFieldRef")) {
            (true, both) => {
                container::field_selector(
                    e,
                    at(item, "fieldRef"),
                    &["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"],
                    &format!("{path}.fieldRef"),
                );
                if both {
                    let why = "fieldRef and resourceFieldRef can not be specified simultaneously";
                    e.invalid(path, &json!("resource"), why);
                }
            }
            (false, true) => {
                let reference = at(item, "resourceFieldRef");
                container::resource_field(e, reference, true, &format!("{path}.resourceFieldRef"));
            }
            (false, false) => e.required(path, "one of fieldRef and resourceFieldRef is required"),
        }
        mode(e, item, "mode", path);
    }
}

fn projected(e: &mut Errors, source: &Value, path: &str) {
    mode(e, source, "defaultMode", path);
    let mut taken: BTreeSet<&str> = BTreeSet::new();
    for (index, part) in items(source, "sources").iter().enumerate() {
        let here = format!("{path}.sources[{index}]");
        let mut sources = 0;
        for kind in ["secret", "configMap", "downwardAPI", "serviceAccountToken", "clusterTrustBundle"] {
            if is_set(part, kind) {
                sources += 1;
                projection(e, kind, at(part, kind), path, &format!("{here}.{kind}"));
                for item in items(part, &format!("{kind}.items")) {
                    let target = text(item, "path");
                    if !target.is_empty() && !taken.insert(target) {
                        let shown = if kind == "downwardAPI" { target } else { text(part, &format!("{kind}.name")) };
                        e.invalid(path, &json!(shown), "conflicting duplicate paths");
                    }
                }
            }
        }
        if is_set(part, "podCertificate") {
            sources += 1;
        }
        if sources > 1 {
            e.forbidden(here, "may not specify more than 1 volume type per source");
        }
    }
}

fn projection(e: &mut Errors, kind: &str, part: &Value, whole: &str, path: &str) {
    match kind {
        "secret" | "configMap" => {
            needs(e, part, &["name"], path);
            keys(e, part, path);
        }
        "downwardAPI" => downward(e, part, path),
        "serviceAccountToken" => {
            let seconds = number(part, "expirationSeconds").unwrap_or(0);
            let field = format!("{path}.expirationSeconds");
            if seconds < 600 {
                e.invalid(&field, &json!(seconds), "may not specify a duration less than 10 minutes");
            }
            if seconds > 1 << 32 {
                e.invalid(&field, &json!(seconds), "may not specify a duration larger than 2^32 seconds");
            }
            local_path(e, format!("{whole}.path"), at(part, "path"));
        }
        _ => {
            let (name, signer) = (is_set(part, "name"), is_set(part, "signerName"));
            match (name, signer) {
                (true, true) => e.invalid(path, part, "only one of name and signerName may be used"),
                (false, false) => e.required(path, "either name or signerName must be specified"),
                _ => {}
            }
            local_path(e, format!("{path}.path"), at(part, "path"));
        }
    }
}
