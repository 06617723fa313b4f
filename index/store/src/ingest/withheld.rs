//! Values to exclude from the cache in addition to Secret values; names, labels and keys are kept.

use super::split::{Fields, ObjectWriter};
use crowsnest_api::propagation::is_karmada_group;
use crowsnest_apimachinery::names::Gvr;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::str::FromStr;

/// Maximum depth that is searched for values to remove. Deeper values are removed entirely.
const MAX_DEPTH: usize = 64;

/// A path to values that are withheld, in the objects of a resource: `configmaps:data`,
/// `widgets.example.com:spec.users.password`. Lists are traversed; `*` matches every field, `\.` is a dot in a field
/// name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WithheldPath {
    resource: String,
    group: String,
    path: Vec<String>,
}

/// Reason why a text is not a valid path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WithheldError {
    #[error("{0:?} is not a path such as configmaps:data or widgets.example.com:spec.password")]
    InvalidPath(String),
    #[error("{0:?} cannot be withheld: the cache requires apiVersion, kind and metadata")]
    IdentityField(String),
    #[error("{0:?} cannot be withheld: permissions, placement and status depend on such objects")]
    Required(String),
}

/// True for resources whose complete objects are required in the cache by controllers and authorization.
fn is_required(group: &str, resource: &str) -> bool {
    let core = ["pods", "nodes", "namespaces", "services", "persistentvolumeclaims", "endpoints", "resourcequotas"];
    let groups = ["apps", "batch", "autoscaling", "policy", "rbac.authorization.k8s.io", "apiextensions.k8s.io"];
    is_karmada_group(group) || groups.contains(&group) || group.is_empty() && core.contains(&resource)
}

/// Splits a path into field names at dots; an escaped dot belongs to a name.
fn parse_field_names(path: &str) -> Vec<String> {
    let mut names = vec![String::new()];
    let mut characters = path.chars().peekable();
    while let Some(character) = characters.next() {
        let is_escaped_dot = character == '\\' && characters.peek() == Some(&'.');
        match (character, names.last_mut()) {
            ('.', _) => names.push(String::new()),
            (_, Some(name)) => name.push(if is_escaped_dot { characters.next().unwrap_or('.') } else { character }),
            (_, None) => {}
        }
    }
    names
}

impl FromStr for WithheldPath {
    type Err = WithheldError;

    fn from_str(text: &str) -> Result<Self, WithheldError> {
        let invalid_path = || WithheldError::InvalidPath(text.to_owned());
        let (resource, path) = text.split_once(':').ok_or_else(invalid_path)?;
        let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
        let path = parse_field_names(path);
        if resource.is_empty() || path.iter().any(String::is_empty) {
            return Err(invalid_path());
        }
        if matches!(path.first().map(String::as_str), Some("apiVersion" | "kind" | "metadata")) {
            return Err(WithheldError::IdentityField(text.to_owned()));
        }
        if is_required(group, resource) {
            return Err(WithheldError::Required(text.to_owned()));
        }
        Ok(Self { resource: resource.to_owned(), group: group.to_owned(), path })
    }
}

impl WithheldPath {
    /// True if values of this resource's objects are withheld.
    pub fn applies_to(&self, resource: &Gvr) -> bool {
        self.resource == *resource.resource && self.group == *resource.group
    }

    /// True if values of this kind's objects are withheld. Assumes the usual plural of the kind as its resource.
    pub(super) fn applies_to_kind(&self, group: &str, kind: &str) -> bool {
        let lower = kind.to_lowercase();
        let plural = match lower.strip_suffix('y') {
            Some(stem) => format!("{stem}ies"),
            None if lower.ends_with('s') => format!("{lower}es"),
            None => format!("{lower}s"),
        };
        self.group == group && self.resource == plural
    }

    /// True if an object of this kind may be embedded in the text.
    pub(super) fn may_apply_within(&self, text: &str) -> bool {
        let kind = |rest: &'_ str| -> Option<bool> {
            let kind = rest.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?.split('"').next()?;
            Some(self.applies_to_kind(&self.group, kind))
        };
        text.split("\"kind\"").skip(1).any(|rest| kind(rest).unwrap_or_default())
    }

    /// The value of a top-level field without the withheld values; None if nothing is withheld from it.
    fn redact_field(&self, name: &str, value: &str) -> Result<Option<String>, serde_json::Error> {
        match self.path.split_first() {
            Some((first, rest)) if first == name || first == "*" => redact(value, rest, MAX_DEPTH).map(Some),
            _ => Ok(None),
        }
    }
}

/// The value of a top-level field without the values withheld by any of the paths.
pub(super) fn redact_paths(paths: &[&WithheldPath], name: &str, value: String) -> Result<String, serde_json::Error> {
    paths.iter().try_fold(value, |value, path| Ok(path.redact_field(name, &value)?.unwrap_or(value)))
}

fn redact(value: &str, path: &[String], max_depth: usize) -> Result<String, serde_json::Error> {
    let Some(remaining_depth) = max_depth.checked_sub(1) else { return Ok("null".to_owned()) };
    let mut text = String::with_capacity(value.len());
    match (path.split_first(), value.as_bytes().first()) {
        (_, Some(b'[')) => {
            let items: Vec<&RawValue> = serde_json::from_str(value)?;
            let items: Result<Vec<String>, _> =
                items.iter().map(|item| redact(item.get(), path, remaining_depth)).collect();
            text = format!("[{}]", items?.join(","));
        }
        (step, Some(b'{')) => {
            let fields: Fields<'_> = serde_json::from_str(value)?;
            let mut out = ObjectWriter::new(&mut text);
            for (name, value) in fields.iter() {
                match step {
                    None => out.push(name, &redact(value.get(), path, remaining_depth)?),
                    Some((first, rest)) if first == name || first == "*" => {
                        out.push(name, &redact(value.get(), rest, remaining_depth)?)
                    }
                    Some(_) => out.push(name, value.get()),
                }
            }
            out.finish();
        }
        (Some(_), _) => text.push_str(value),
        (None, Some(b'"')) => text.push_str("\"\""),
        (None, _) => text.push_str("null"),
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::all_of_it("configmaps:data", "data", r#"{"a":"x","b":7}"#, Some(r#"{"a":"","b":null}"#))]
    #[case::another_field("configmaps:data", "binaryData", r#"{"a":"x"}"#, None)]
    #[case::one_key("configmaps:data.b", "data", r#"{"a":"x","b":"y"}"#, Some(r#"{"a":"x","b":""}"#))]
    #[case::in_lists(
        "w.x:spec.users.password",
        "spec",
        r#"{"n":1,"users":[{"name":"u","password":"p"},7]}"#,
        Some(r#"{"n":1,"users":[{"name":"u","password":""},7]}"#)
    )]
    #[case::anywhere(
        "w.x:spec.*.token",
        "spec",
        r#"{"a":{"token":"t"},"b":{"c":"t"}}"#,
        Some(r#"{"a":{"token":""},"b":{"c":"t"}}"#)
    )]
    #[case::all_below(
        "w.x:spec",
        "spec",
        r#"{"a":[{"b":[1,"x"]}],"c":true}"#,
        Some(r#"{"a":[{"b":[null,""]}],"c":null}"#)
    )]
    #[case::escaped_dot(
        r"configmaps:data.ca\.crt",
        "data",
        r#"{"ca.crt":"x","ca":"y"}"#,
        Some(r#"{"ca.crt":"","ca":"y"}"#)
    )]
    #[case::absent("w.x:spec.a.b", "spec", r#"{"a":"x"}"#, Some(r#"{"a":"x"}"#))]
    fn values_are_removed_and_keys_kept(
        #[case] withheld: &str,
        #[case] field: &str,
        #[case] value: &str,
        #[case] expected: Option<&str>,
    ) {
        let withheld: WithheldPath = withheld.parse().unwrap();
        assert_eq!(withheld.redact_field(field, value).unwrap().as_deref(), expected);
    }

    #[test]
    fn too_deeply_nested_values_are_removed() {
        let value = format!("{}7{}", "[".repeat(100_000), "]".repeat(100_000));
        let withheld: WithheldPath = "configmaps:data.a".parse().unwrap();
        let redacted = withheld.redact_field("data", &value).unwrap().unwrap();
        assert_eq!(redacted, format!("{}null{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH)));
    }

    #[rstest]
    #[case("deployments.apps:spec", "depend on such objects")]
    #[case("works.work.karmada.io:spec", "depend on such objects")]
    #[case("configmaps", "is not a path")]
    #[case("configmaps:", "is not a path")]
    #[case(":data", "is not a path")]
    #[case("configmaps:data..a", "is not a path")]
    #[case("configmaps:metadata.labels", "cannot be withheld")]
    fn invalid_paths_are_rejected(#[case] text: &str, #[case] expected: &str) {
        assert!(text.parse::<WithheldPath>().unwrap_err().to_string().contains(expected));
    }
}
