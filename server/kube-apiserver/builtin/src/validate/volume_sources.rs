//! Validation of volume sources that pods and persistent volumes have in common.

use std::sync::LazyLock;

use regex::Regex;

use super::volume::require_fields;
use super::{Errors, Value, at, is_set, items, json, mount, number, text, validate_dns1123_label};

/// Validates a source that pods and persistent volumes have in common.
pub(super) fn validate_shared_source(e: &mut Errors, kind: &str, source: &Value, path: &str) {
    match kind {
        "hostPath" => {
            let host_path = text(source, "path");
            if host_path.is_empty() {
                return e.required(format!("{path}.path"), "");
            }
            if mount::has_parent_reference(host_path) {
                e.invalid(format!("{path}.path"), &json!(host_path), "must not contain '..'");
            }
            let kinds =
                ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
            if !kinds.contains(&text(source, "type")) {
                e.unsupported(format!("{path}.type"), at(source, "type"), &kinds);
            }
        }
        "local" => {
            require_fields(e, source, &["path"], path);
            if mount::has_parent_reference(text(source, "path")) {
                e.invalid(format!("{path}.path"), at(source, "path"), "must not contain '..'");
            }
        }
        "nfs" => {
            require_fields(e, source, &["server", "path"], path);
            if !text(source, "path").starts_with('/') {
                e.invalid(format!("{path}.path"), &json!(text(source, "path")), "must be an absolute path");
            }
        }
        "gcePersistentDisk" | "awsElasticBlockStore" => {
            require_fields(e, source, &[if kind == "gcePersistentDisk" { "pdName" } else { "volumeID" }], path);
            if number(source, "partition").is_some_and(|number| !(0..=255).contains(&number)) {
                let reason = "must be between 1 and 255, inclusive";
                e.invalid(format!("{path}.partition"), at(source, "partition"), reason);
            }
        }
        "cinder" | "portworxVolume" => require_fields(e, source, &["volumeID"], path),
        "iscsi" => validate_iscsi(e, source, path),
        "fc" => validate_fibre_channel(e, source, path),
        "glusterfs" => require_fields(e, source, &["endpoints", "path"], path),
        "rbd" | "cephfs" => {
            if items(source, "monitors").is_empty() {
                e.required(format!("{path}.monitors"), "");
            }
            if kind == "rbd" {
                require_fields(e, source, &["image"], path);
            }
        }
        "flexVolume" => require_fields(e, source, &["driver"], path),
        "vsphereVolume" => require_fields(e, source, &["volumePath"], path),
        "photonPersistentDisk" => require_fields(e, source, &["pdID"], path),
        "azureDisk" => {
            require_fields(e, source, &["diskName", "diskURI"], path);
            e.optional_one_of(
                &format!("{path}.cachingMode"),
                at(source, "cachingMode"),
                &["None", "ReadOnly", "ReadWrite"],
            );
            e.optional_one_of(&format!("{path}.kind"), at(source, "kind"), &["Dedicated", "Managed", "Shared"]);
            let (is_managed, uri) = (text(source, "kind") == "Managed", text(source, "diskURI"));
            let supported = if is_managed {
                "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}"
            } else {
                "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"
            };
            if !uri.starts_with(if is_managed { "/subscriptions/" } else { "https://" }) {
                e.unsupported(format!("{path}.diskURI"), &json!(uri), &[supported]);
            }
        }
        "scaleIO" => require_fields(e, source, &["gateway", "system", "volumeName"], path),
        "storageos" => validate_storage_os(e, source, path),
        "flocker" => validate_flocker(e, source, path),
        "quobyte" => validate_quobyte(e, source, path),
        _ => {}
    }
}

fn validate_storage_os(e: &mut Errors, source: &Value, path: &str) {
    require_fields(e, source, &["volumeName"], path);
    for field in ["volumeName", "volumeNamespace"] {
        let name = text(source, field);
        if !name.is_empty() {
            e.push_name_errors(&format!("{path}.{field}"), name, validate_dns1123_label(name));
        }
    }
    if is_set(source, "secretRef") {
        require_fields(e, at(source, "secretRef"), &["name"], &format!("{path}.secretRef"));
    }
}

fn validate_flocker(e: &mut Errors, source: &Value, path: &str) {
    let (name, id) = (text(source, "datasetName"), text(source, "datasetUUID"));
    match (name.is_empty(), id.is_empty()) {
        (true, true) => e.required(path, "one of datasetName and datasetUUID is required"),
        (false, false) => {
            let reason = "datasetName and datasetUUID can not be specified simultaneously";
            e.invalid(path, &json!("resource"), reason);
        }
        _ => {}
    }
    if name.contains('/') {
        e.invalid(format!("{path}.datasetName"), &json!(name), "must not contain '/'");
    }
}

fn validate_quobyte(e: &mut Errors, source: &Value, path: &str) {
    const PAIRS: &str = "must be a host:port pair or multiple pairs separated by commas";
    let registry = text(source, "registry");
    if registry.is_empty() {
        e.required(format!("{path}.registry"), PAIRS);
    } else if text(source, "tenant").len() >= 65 {
        e.required(format!("{path}.tenant"), "must be a UUID and may not exceed a length of 64 characters");
    } else {
        for _ in registry.split(',').filter(|pair| !is_host_and_port(pair)) {
            e.invalid(format!("{path}.registry"), &json!(registry), PAIRS);
        }
    }
    require_fields(e, source, &["volume"], path);
}

/// True if Go's `net.SplitHostPort` accepts the text.
fn is_host_and_port(pair: &str) -> bool {
    match pair.rsplit_once(':') {
        Some((host, _)) if host.starts_with('[') => {
            host.ends_with(']') && !host[1..host.len() - 1].contains(['[', ']'])
        }
        Some((host, port)) => !host.contains([':', '[', ']']) && !port.contains(['[', ']']),
        None => false,
    }
}

fn validate_iscsi(e: &mut Errors, source: &Value, path: &str) {
    require_fields(e, source, &["targetPortal", "iqn"], path);
    let name = text(source, "iqn");
    if !name.is_empty() {
        validate_initiator(e, name, format!("{path}.iqn"));
    }
    if number(source, "lun").is_some_and(|lun| !(0..=255).contains(&lun)) {
        e.invalid(format!("{path}.lun"), at(source, "lun"), "must be between 0 and 255, inclusive");
    }
    let chap = at(source, "chapAuthDiscovery") == true || at(source, "chapAuthSession") == true;
    if chap && !is_set(source, "secretRef") {
        e.required(format!("{path}.secretRef"), "");
    }
    if let Some(name) = at(source, "initiatorName").as_str() {
        validate_initiator(e, name, format!("{path}.initiatorname"));
    }
}

fn validate_initiator(e: &mut Errors, name: &str, field: String) {
    static FORMS: LazyLock<[Option<Regex>; 3]> = LazyLock::new(|| {
        let qualified = r"iqn\.\d{4}-\d{2}\.([[:alnum:]\-.]+)(:[^,;*&$|\s]+)$";
        [qualified, "^eui.[[:alnum:]]{16}$", "^naa.[[:alnum:]]{32}$"].map(|form| Regex::new(form).ok())
    });
    match ["iqn", "eui", "naa"].iter().position(|start| name.starts_with(start)) {
        None => e.invalid(field, &json!(name), "must be valid format starting with iqn, eui, or naa"),
        Some(form) if !FORMS[form].as_ref().is_some_and(|form| form.is_match(name)) => {
            e.invalid(field, &json!(name), "must be valid format");
        }
        Some(_) => {}
    }
}

fn validate_fibre_channel(e: &mut Errors, source: &Value, path: &str) {
    let (targets, ids) = (items(source, "targetWWNs"), items(source, "wwids"));
    let field = format!("{path}.targetWWNs");
    match (targets.is_empty(), ids.is_empty()) {
        (true, true) => e.required(field, "must specify either targetWWNs or wwids, but not both"),
        (false, false) => {
            e.invalid(field, &json!(targets), "targetWWNs and wwids can not be specified simultaneously");
        }
        _ => {}
    }
    match number(source, "lun") {
        _ if targets.is_empty() => {}
        None => e.required(format!("{path}.lun"), "lun is required if targetWWNs is specified"),
        Some(lun) if !(0..=255).contains(&lun) => {
            e.invalid(format!("{path}.lun"), &json!(lun), "must be between 0 and 255, inclusive");
        }
        Some(_) => {}
    }
}
