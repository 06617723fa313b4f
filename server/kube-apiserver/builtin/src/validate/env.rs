//! Validation of the environment of containers: `env`, `valueFrom` and `envFrom`.

use super::container::{validate_object_field_selector, validate_resource_field_ref};
use super::{
    Errors, FieldError, FieldErrorKind, Value, at, config, is_set, is_unset, items, json, mount, text,
    validate_dns1123_label, validate_dns1123_subdomain,
};

const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// `IsRelaxedEnvVarName`.
fn env_name_errors(name: &str) -> Vec<String> {
    let printable = name.chars().all(|c| (' '..='~').contains(&c) && c != '=');
    if printable {
        Vec::new()
    } else {
        vec!["a valid environment variable name must consist only of printable ASCII characters other than '='".into()]
    }
}

pub(super) fn validate_environment(e: &mut Errors, container: &Value, path: &str) {
    for (index, variable) in items(container, "env").iter().enumerate() {
        let path = format!("{path}.env[{index}]");
        let name = text(variable, "name");
        if name.is_empty() {
            e.required(format!("{path}.name"), "");
        } else {
            e.push_name_errors(&format!("{path}.name"), name, env_name_errors(name));
        }
        if is_set(variable, "valueFrom") {
            validate_value_from(e, variable, &format!("{path}.valueFrom"));
        }
    }
    let list = format!("{path}.envFrom");
    for (index, source) in items(container, "envFrom").iter().enumerate() {
        let path = format!("{list}[{index}]");
        let prefix = text(source, "prefix");
        e.push_name_errors(&format!("{path}.prefix"), prefix, env_name_errors(prefix));
        let mut sources = 0;
        for kind in ["configMapRef", "secretRef"] {
            if is_set(source, kind) {
                sources += 1;
                let (name, field) = (text(source, &format!("{kind}.name")), format!("{path}.{kind}.name"));
                if name.is_empty() {
                    e.required(field, "");
                } else {
                    e.push_name_errors(&field, name, validate_dns1123_subdomain(name));
                }
            }
        }
        match sources {
            0 => e.invalid(&list, &json!(""), "must specify one of: `configMapRef` or `secretRef`"),
            1 => {}
            _ => e.invalid(&list, &json!(""), "may not have more than one field specified at a time"),
        }
    }
}

fn validate_value_from(e: &mut Errors, variable: &Value, path: &str) {
    let source = at(variable, "valueFrom");
    let mut sources = 0;
    if is_set(source, "fieldRef") {
        sources += 1;
        validate_object_field_selector(e, at(source, "fieldRef"), &ENV_FIELDS, &format!("{path}.fieldRef"));
    }
    if is_set(source, "resourceFieldRef") {
        sources += 1;
        validate_resource_field_ref(e, at(source, "resourceFieldRef"), false, &format!("{path}.resourceFieldRef"));
    }
    for kind in ["configMapKeyRef", "secretKeyRef"] {
        if is_set(source, kind) {
            sources += 1;
            let (path, reference) = (format!("{path}.{kind}"), at(source, kind));
            let name = text(reference, "name");
            e.push_name_errors(&format!("{path}.name"), name, validate_dns1123_subdomain(name));
            let key = text(reference, "key");
            if key.is_empty() {
                e.required(format!("{path}.key"), "");
            } else {
                e.push_name_errors(&format!("{path}.key"), key, config::key_errors(key));
            }
        }
    }
    if is_set(source, "fileKeyRef") {
        sources += 1;
        validate_file_key_ref(e, at(source, "fileKeyRef"), &format!("{path}.fileKeyRef"));
    }
    if sources == 0 {
        e.invalid(
            path,
            &json!(""),
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        );
    } else if !is_unset(variable, "value") {
        e.invalid(path, &json!(""), "may not be specified when `value` is not empty");
    } else if sources > 1 {
        e.invalid(path, &json!(""), "may not have more than one field specified at a time");
    }
}

fn validate_file_key_ref(e: &mut Errors, reference: &Value, path: &str) {
    let (key, volume, file) = (text(reference, "key"), text(reference, "volumeName"), text(reference, "path"));
    if key.is_empty() {
        e.required(format!("{path}.key"), "");
    } else {
        e.push_name_errors(&format!("{path}.key"), key, env_name_errors(key));
    }
    if volume.is_empty() {
        e.required(format!("{path}.volumeName"), "");
    } else {
        e.push_name_errors(&format!("{path}.volumeName"), volume, validate_dns1123_label(volume));
    }
    if file.is_empty() {
        e.required(format!("{path}.path"), "");
    } else if mount::has_parent_reference(file) {
        e.invalid(format!("{path}.path"), &json!(file), "must not contain '..'");
    }
}

/// `validateFileKeyRefVolumes`: file key references need an `emptyDir` volume.
pub(super) fn validate_file_key_volumes(e: &mut Errors, spec: &Value, path: &str) {
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for (c, container) in items(spec, list).iter().enumerate() {
            for (index, variable) in items(container, "env").iter().enumerate() {
                let Some(name) = at(variable, "valueFrom.fileKeyRef.volumeName").as_str() else { continue };
                let field = format!("{path}.{list}[{c}].env[{index}].valueFrom.fileKeyRef.volumeName");
                match items(spec, "volumes").iter().find(|volume| text(volume, "name") == name) {
                    None => e.push(FieldError::new(FieldErrorKind::NotFound, field, Some(json!(name).to_string()), "")),
                    Some(volume) if !is_set(volume, "emptyDir") => {
                        e.invalid(field, &json!(name), "referenced volume must be of type emptyDir");
                    }
                    Some(_) => {}
                }
            }
        }
    }
}
