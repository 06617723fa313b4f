//! Validation of the fields of a CRD version other than its schema, with kube-apiserver's order and wording. Has no
//! side effects.

use std::collections::BTreeSet;

use crowsnest_apimachinery::field::{FieldError, FieldErrorKind};

use super::definition::{Version, flag, list, text};
use super::field_paths;

const COLUMN_TYPES: &[&str] = &["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: &[&str] = &["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
const MAX_SELECTABLE_FIELDS: usize = 8;

pub(super) fn validate_deprecation_warning(version: Version<'_>, path: &str, errors: &mut Vec<FieldError>) {
    let Some(warning) = version.0.get("deprecationWarning").filter(|w| !w.is_null()) else { return };
    let mut invalid = |problem: String| {
        errors.push(FieldError::invalid(format!("{path}.deprecationWarning"), warning, problem));
    };
    let message = warning.as_str().unwrap_or("");
    if !flag(version.0, "/deprecated") {
        return invalid("can only be set for deprecated versions".to_owned());
    }
    if message.len() > 256 {
        invalid("must be <= 256 characters long".to_owned());
    }
    if message.is_empty() {
        invalid("must not be an empty string".to_owned());
    }
    let is_unprintable = |c: char| c.is_control() || (c.is_whitespace() && c != ' ');
    if let Some((at, _)) = message.char_indices().find(|(_, c)| is_unprintable(*c)) {
        invalid(format!("must only contain printable UTF-8 characters; non-printable character found at index {at}"));
    }
}

pub(super) fn validate_subresources(version: Version<'_>, path: &str, errors: &mut Vec<FieldError>) {
    let Some(scale) = version.scale() else { return };
    let mut check_path = |key: &str, parents: &[&str], is_required: bool| {
        let field = format!("{path}.scale.{key}");
        let json_path = text(scale, &format!("/{key}"));
        if json_path.is_empty() {
            if is_required {
                errors.push(FieldError::required(field, ""));
            }
            return;
        }
        let reason = match json_path.starts_with('.') {
            false => "must be a simple json path starting with .".to_owned(),
            true if parents.iter().any(|parent| json_path.starts_with(&format!("{parent}."))) => return,
            true if parents.len() > 1 => format!("should be a json path under either {}", parents.join(" or ")),
            true => format!("should be a json path under {}", parents.concat()),
        };
        errors.push(FieldError::invalid(field, json_path, reason));
    };
    check_path("specReplicasPath", &[".spec"], true);
    check_path("statusReplicasPath", &[".status"], true);
    check_path("labelSelectorPath", &[".spec", ".status"], false);
}

pub(super) fn validate_printer_columns(version: Version<'_>, path: &str, errors: &mut Vec<FieldError>) {
    for (index, column) in version.printer_columns().iter().enumerate() {
        let at = format!("{path}[{index}]");
        if text(column, "/name").is_empty() {
            errors.push(FieldError::required(format!("{at}.name"), ""));
        }
        let one_of = |all: &[&str]| format!("must be one of {}", all.join(","));
        match text(column, "/type") {
            "" => errors.push(FieldError::required(format!("{at}.type"), one_of(COLUMN_TYPES))),
            kind if !COLUMN_TYPES.contains(&kind) => {
                errors.push(FieldError::invalid(format!("{at}.type"), kind, one_of(COLUMN_TYPES)));
            }
            _ => {}
        }
        let format = text(column, "/format");
        if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
            errors.push(FieldError::invalid(format!("{at}.format"), format, one_of(COLUMN_FORMATS)));
        }
        let json_path = text(column, "/jsonPath");
        if json_path.is_empty() {
            errors.push(FieldError::required(format!("{at}.JSONPath"), ""));
        } else if !json_path.starts_with('.') {
            let detail = "must be a simple json path starting with .";
            errors.push(FieldError::invalid(format!("{at}.JSONPath"), json_path, detail));
        }
    }
}

pub(super) fn validate_selectable_fields(version: Version<'_>, path: &str, errors: &mut Vec<FieldError>) {
    let fields = list(version.0, "/selectableFields");
    if fields.is_empty() {
        return;
    }
    let Some(schema) = version.schema() else {
        let detail = "may only be set when `version.schema.openAPIV3Schema` is not included";
        errors.push(FieldError::invalid(path, "", detail));
        return;
    };
    let mut seen = BTreeSet::new();
    for (index, field) in fields.iter().enumerate() {
        let at = format!("{path}[{index}].jsonPath");
        let json_path = text(field, "/jsonPath");
        if json_path.is_empty() {
            errors.push(FieldError::required(at, ""));
            continue;
        }
        let resolved = match field_paths::resolve(json_path, schema, false) {
            Ok(resolved) => resolved,
            Err(reason) => {
                errors.push(FieldError::invalid(at, json_path, format!("is an invalid path: {reason}")));
                continue;
            }
        };
        if resolved.display.split(['.', '[']).next() == Some("metadata") {
            errors.push(FieldError::invalid(at.as_str(), json_path, "must not point to fields in metadata"));
        }
        if !matches!(text(resolved.schema, "/type"), "string" | "integer" | "boolean") {
            let detail = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
            errors.push(FieldError::invalid(at.as_str(), json_path, detail));
        }
        if !seen.insert(resolved.display) {
            errors.push(FieldError::duplicate(at, json_path));
        }
    }
    if seen.len() > MAX_SELECTABLE_FIELDS {
        let count = Some(seen.len().to_string());
        let detail = format!("must have at most {MAX_SELECTABLE_FIELDS} items");
        errors.push(FieldError::new(FieldErrorKind::TooMany, path, count, detail));
    }
}
