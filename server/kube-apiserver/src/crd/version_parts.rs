//! Validation of a CRD version's parts other than its schema, with kube-apiserver's order and wording. Pure.

use std::collections::BTreeSet;

use crowsnest_apimachinery::field::{FieldError, FieldErrorKind};

use super::definition::{Version, flag, list, text};
use super::field_paths;

const COLUMN_TYPES: &[&str] = &["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: &[&str] = &["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
const MOST_SELECTABLE: usize = 8;

pub(super) fn deprecation(version: Version<'_>, path: &str, errors: &mut Vec<FieldError>) {
    let Some(warning) = version.0.get("deprecationWarning").filter(|w| !w.is_null()) else { return };
    let mut invalid = |problem: String| {
        errors.push(FieldError::invalid(format!("{path}.deprecationWarning"), warning, problem));
    };
    let written = warning.as_str().unwrap_or("");
    if !flag(version.0, "/deprecated") {
        return invalid("can only be set for deprecated versions".to_owned());
    }
    if written.len() > 256 {
        invalid("must be <= 256 characters long".to_owned());
    }
    if written.is_empty() {
        invalid("must not be an empty string".to_owned());
    }
    let unprintable = |c: char| c.is_control() || (c.is_whitespace() && c != ' ');
    if let Some((at, _)) = written.char_indices().find(|(_, c)| unprintable(*c)) {
        invalid(format!("must only contain printable UTF-8 characters; non-printable character found at index {at}"));
    }
}

pub(super) fn subresources(version: Version<'_>, path: &str, errors: &mut Vec<FieldError>) {
    let Some(scale) = version.scale() else { return };
    let mut check = |key: &str, start: &[&str], required: bool| {
        let field = format!("{path}.scale.{key}");
        let written = text(scale, &format!("/{key}"));
        if written.is_empty() {
            if required {
                errors.push(FieldError::required(field, ""));
            }
            return;
        }
        let why = match written.starts_with('.') {
            false => "must be a simple json path starting with .".to_owned(),
            true if start.iter().any(|start| written.starts_with(&format!("{start}."))) => return,
            true if start.len() > 1 => format!("should be a json path under either {}", start.join(" or ")),
            true => format!("should be a json path under {}", start.concat()),
        };
        errors.push(FieldError::invalid(field, written, why));
    };
    check("specReplicasPath", &[".spec"], true);
    check("statusReplicasPath", &[".status"], true);
    check("labelSelectorPath", &[".spec", ".status"], false);
}

pub(super) fn columns(version: Version<'_>, path: &str, errors: &mut Vec<FieldError>) {
    for (index, column) in version.columns().iter().enumerate() {
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

pub(super) fn selectable(version: Version<'_>, path: &str, errors: &mut Vec<FieldError>) {
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
        let written = text(field, "/jsonPath");
        if written.is_empty() {
            errors.push(FieldError::required(at, ""));
            continue;
        }
        let found = match field_paths::resolve(written, schema, false) {
            Ok(found) => found,
            Err(why) => {
                errors.push(FieldError::invalid(at, written, format!("is an invalid path: {why}")));
                continue;
            }
        };
        if found.display.split(['.', '[']).next() == Some("metadata") {
            errors.push(FieldError::invalid(at.as_str(), written, "must not point to fields in metadata"));
        }
        if !matches!(text(found.schema, "/type"), "string" | "integer" | "boolean") {
            let detail = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
            errors.push(FieldError::invalid(at.as_str(), written, detail));
        }
        if !seen.insert(found.display) {
            errors.push(FieldError::duplicate(at, written));
        }
    }
    if seen.len() > MOST_SELECTABLE {
        let count = Some(seen.len().to_string());
        let detail = format!("must have at most {MOST_SELECTABLE} items");
        errors.push(FieldError::new(FieldErrorKind::TooMany, path, count, detail));
    }
}
