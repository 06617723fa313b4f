//! Volumes of a pod.

use std::collections::BTreeSet;

use super::{Errors, FieldError, Value, at, container, dns1123_label, items, json, number, set, text};

/// In the order the sources are looked at: the first that is set counts, the others are refused.
const SOURCES: [&str; 30] = [
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "persistentVolumeClaim",
    "rbd",
    "cinder",
    "cephfs",
    "quobyte",
    "downwardAPI",
    "fc",
    "flocker",
    "configMap",
    "flexVolume",
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

/// Returns the names of the volumes that are in order.
pub(super) fn list(e: &mut Errors, spec: &Value, path: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (index, volume) in items(spec, "volumes").iter().enumerate() {
        let path = format!("{path}.volumes[{index}]");
        let mut own = Errors::default();
        source(&mut own, volume, &path);
        let name = text(volume, "name");
        if name.is_empty() {
            own.required(format!("{path}.name"), "");
        } else {
            own.names(&format!("{path}.name"), name, dns1123_label(name));
        }
        if names.contains(name) {
            own.duplicate(format!("{path}.name"), &json!(name));
        }
        if own.0.is_empty() {
            names.insert(name.to_owned());
        }
        e.0.extend(own.0);
    }
    names
}

fn source(e: &mut Errors, volume: &Value, path: &str) {
    let mut found = false;
    for kind in SOURCES {
        if !set(volume, kind) {
            continue;
        }
        let here = format!("{path}.{kind}");
        if found {
            e.forbidden(here, "may not specify more than 1 volume type");
            continue;
        }
        found = true;
        one(e, kind, at(volume, kind), &here);
    }
    if !found {
        e.required(path, "must specify a volume type");
    }
}

fn one(e: &mut Errors, kind: &str, source: &Value, path: &str) {
    let mut needs = |fields: &[&str]| {
        for field in fields {
            if text(source, field).is_empty() {
                e.required(format!("{path}.{field}"), "");
            }
        }
    };
    match kind {
        "hostPath" => {
            needs(&["path"]);
            if text(source, "path").split('/').any(|part| part == "..") {
                e.invalid(format!("{path}.path"), at(source, "path"), "must not contain '..'");
            }
            let kinds =
                ["", "DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice"];
            if !kinds.contains(&text(source, "type")) {
                e.unsupported(
                    format!("{path}.type"),
                    at(source, "type"),
                    &["BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"],
                );
            }
        }
        "secret" => {
            needs(&["secretName"]);
            mode(e, source, "defaultMode", path);
            keys(e, source, path);
        }
        "configMap" => {
            needs(&["name"]);
            mode(e, source, "defaultMode", path);
            keys(e, source, path);
        }
        "nfs" => {
            needs(&["server", "path"]);
            if !text(source, "path").is_empty() && !text(source, "path").starts_with('/') {
                e.invalid(format!("{path}.path"), at(source, "path"), "must be an absolute path");
            }
        }
        "persistentVolumeClaim" => needs(&["claimName"]),
        "gitRepo" => needs(&["repository"]),
        "gcePersistentDisk" => needs(&["pdName"]),
        "awsElasticBlockStore" | "cinder" => needs(&["volumeID"]),
        "iscsi" => needs(&["targetPortal", "iqn"]),
        "glusterfs" => needs(&["endpoints", "path"]),
        "rbd" => needs(&["image"]),
        "flexVolume" | "csi" => needs(&["driver"]),
        "azureFile" => needs(&["secretName", "shareName"]),
        "vsphereVolume" => needs(&["volumePath"]),
        "azureDisk" => needs(&["diskName", "diskURI"]),
        "emptyDir" => {
            let limit = super::resources::amount(at(source, "sizeLimit"));
            if limit.is_some_and(|limit| limit.sign() < 0) {
                e.forbidden(format!("{path}.sizeLimit"), "SizeLimit field must be a valid resource quantity");
            }
        }
        "downwardAPI" => {
            mode(e, source, "defaultMode", path);
            downward(e, source, path);
        }
        "projected" => projected(e, source, path),
        "ephemeral" => match at(source, "volumeClaimTemplate") {
            Value::Null => e.required(format!("{path}.volumeClaimTemplate"), ""),
            template => super::storage::claim(e, at(template, "spec"), &format!("{path}.volumeClaimTemplate.spec")),
        },
        _ => {}
    }
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

fn downward(e: &mut Errors, source: &Value, path: &str) {
    for (index, item) in items(source, "items").iter().enumerate() {
        let path = format!("{path}.items[{index}]");
        local_path(e, format!("{path}.path"), at(item, "path"));
        match (set(item, "fieldRef"), set(item, "resourceFieldRef")) {
            (true, true) => e.invalid(
                &path,
                &json!("resource"),
                "fieldRef and resourceFieldRef can not be specified simultaneously",
            ),
            (true, false) => container::field_selector(
                e,
                at(item, "fieldRef"),
                &["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"],
                &format!("{path}.fieldRef"),
            ),
            (false, true) => {}
            (false, false) => e.required(path.clone(), "one of fieldRef and resourceFieldRef is required"),
        }
        mode(e, item, "mode", &path);
    }
}

fn projected(e: &mut Errors, source: &Value, path: &str) {
    mode(e, source, "defaultMode", path);
    let mut paths: BTreeSet<String> = BTreeSet::new();
    for (index, part) in items(source, "sources").iter().enumerate() {
        let path = format!("{path}.sources[{index}]");
        let mut sources = 0;
        for kind in
            ["secret", "configMap", "downwardAPI", "serviceAccountToken", "clusterTrustBundle", "podCertificate"]
        {
            if !set(part, kind) {
                continue;
            }
            sources += 1;
            let (here, part) = (format!("{path}.{kind}"), at(part, kind));
            match kind {
                "secret" | "configMap" => {
                    if text(part, "name").is_empty() {
                        e.required(format!("{here}.name"), "");
                    }
                    keys(e, part, &here);
                }
                "downwardAPI" => downward(e, part, &here),
                "serviceAccountToken" => {
                    if let Some(seconds) = number(part, "expirationSeconds").filter(|s| *s < 600) {
                        e.invalid(
                            format!("{here}.expirationSeconds"),
                            &json!(seconds),
                            "may not specify a duration less than 10 minutes",
                        );
                    }
                    if text(part, "path").is_empty() {
                        e.required(format!("{here}.path"), "");
                    }
                }
                _ => {}
            }
            for item in items(part, "items") {
                let target = text(item, "path");
                if !target.is_empty() && !paths.insert(target.to_owned()) {
                    e.push(FieldError::invalid(format!("{here}.path"), &json!(target), "conflicting duplicate paths"));
                }
            }
        }
        if sources > 1 {
            e.forbidden(path, "may not specify more than 1 volume type per source");
        }
    }
}
