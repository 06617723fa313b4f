//! Validation of Crowsnest's annotations of Clusters that have a fixed set of values. A write that sets an
//! unsupported value is rejected. An unsupported value that is already stored is treated as the safest supported one
//! and reported as a warning.

use std::collections::BTreeMap;

use crowsnest_api::constants::annotation::{
    CONFIRMED_DOWN, EXEC, EXEC_DISABLED, EXEC_ENABLED, IMPERSONATES, IMPERSONATES_ALL_ATTRIBUTES, REACHED_THROUGH,
    REACHED_THROUGH_AGENT, RESPONSE_TIMEOUT,
};
use crowsnest_apimachinery::field::FieldError;

type Annotations = BTreeMap<String, String>;

/// An annotation with an unsupported value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsupportedAnnotation {
    key: &'static str,
    value: String,
    error: FieldError,
    /// The behaviour that applies instead, for the warning.
    fallback: &'static str,
}

impl UnsupportedAnnotation {
    /// Warning for a client that writes the Cluster.
    pub fn warning(&self) -> String {
        let Self { key, value, fallback, .. } = self;
        format!("metadata.annotations[{key}]: {value:?} is not supported: {fallback}")
    }
}

/// All annotations of a Cluster with unsupported values.
pub fn find_unsupported(annotations: Option<&Annotations>) -> Vec<UnsupportedAnnotation> {
    let Some(annotations) = annotations else { return Vec::new() };
    let choices: [(&'static str, &[&str], &'static str); 4] = [
        (CONFIRMED_DOWN, &["true", "false"], "its readiness is probed as for any other cluster"),
        (EXEC, &[EXEC_DISABLED, EXEC_ENABLED], "exec into its pods is refused, as with \"disabled\""),
        (
            IMPERSONATES,
            &[IMPERSONATES_ALL_ATTRIBUTES],
            "only users and groups are impersonated, neither UID nor extra fields",
        ),
        (
            REACHED_THROUGH,
            &[REACHED_THROUGH_AGENT],
            "in pull mode it is only reached through its agent, as with \"agent\"",
        ),
    ];
    let path = |key: &str| format!("metadata.annotations[{key}]");
    let mut unsupported: Vec<UnsupportedAnnotation> = choices
        .into_iter()
        .filter_map(|(key, supported, fallback)| {
            let value = annotations.get(key).filter(|value| !supported.contains(&value.as_str()))?;
            Some(UnsupportedAnnotation {
                key,
                value: value.clone(),
                error: FieldError::not_supported(path(key), value, supported),
                fallback,
            })
        })
        .collect();
    if let Some(value) = annotations.get(RESPONSE_TIMEOUT).filter(|value| !is_seconds(value)) {
        let error = FieldError::invalid(path(RESPONSE_TIMEOUT), value, "must be a number of seconds greater than 0");
        let fallback = "the default response timeout applies";
        unsupported.push(UnsupportedAnnotation { key: RESPONSE_TIMEOUT, value: value.clone(), error, fallback });
    }
    unsupported
}

fn is_seconds(value: &str) -> bool {
    value.parse().is_ok_and(|seconds: u64| seconds > 0)
}

/// Validates the annotations of a write: returns errors for unsupported values that it sets, and warnings for those
/// that were stored before.
pub fn validate_change(now: Option<&Annotations>, before: Option<&Annotations>) -> (Vec<FieldError>, Vec<String>) {
    let was_stored = |annotation: &UnsupportedAnnotation| {
        before.and_then(|before| before.get(annotation.key)) == Some(&annotation.value)
    };
    let (old, new): (Vec<_>, Vec<_>) = find_unsupported(now).into_iter().partition(was_stored);
    (
        new.into_iter().map(|annotation| annotation.error).collect(),
        old.iter().map(UnsupportedAnnotation::warning).collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn annotations(entries: &[(&str, &str)]) -> Annotations {
        entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[rstest]
    #[case(EXEC, "disabled", None)]
    #[case(EXEC, "enabled", None)]
    #[case(EXEC, "Disabled", Some("Unsupported value: \"Disabled\": supported values: \"disabled\", \"enabled\""))]
    #[case(EXEC, "", Some("Unsupported value: \"\": supported values: \"disabled\", \"enabled\""))]
    #[case(IMPERSONATES, "whole", None)]
    #[case(IMPERSONATES, "all", Some("Unsupported value: \"all\": supported values: \"whole\""))]
    #[case(REACHED_THROUGH, "agent", None)]
    #[case(REACHED_THROUGH, "pigeon", Some("Unsupported value: \"pigeon\": supported values: \"agent\""))]
    #[case(CONFIRMED_DOWN, "true", None)]
    #[case(CONFIRMED_DOWN, "yes", Some("Unsupported value: \"yes\": supported values: \"true\", \"false\""))]
    #[case(RESPONSE_TIMEOUT, "5", None)]
    #[case(RESPONSE_TIMEOUT, "0", Some("Invalid value: \"0\": must be a number of seconds greater than 0"))]
    #[case(RESPONSE_TIMEOUT, "5s", Some("Invalid value: \"5s\": must be a number of seconds greater than 0"))]
    #[case("example.com/any", "thing", None)]
    fn unsupported_values_are_rejected_on_write(
        #[case] key: &str,
        #[case] value: &str,
        #[case] expected: Option<&str>,
    ) {
        let new = annotations(&[(key, value)]);
        let refused: Vec<String> =
            expected.iter().map(|reason| format!("metadata.annotations[{key}]: {reason}")).collect();
        for before in [None, Some(&annotations(&[(key, "other")]))] {
            let (errors, warnings) = validate_change(Some(&new), before);
            assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), refused);
            assert!(warnings.is_empty());
        }
        // A value that was stored before must not block other changes.
        let (errors, warnings) = validate_change(Some(&new), Some(&new));
        assert!(errors.is_empty());
        assert_eq!(warnings.len(), refused.len());
        assert!(warnings.iter().all(|warning| warning.contains(key) && warning.contains(&format!("{value:?}"))));
    }
}
