//! Kubernetes' format rules for names, labels, taints and similar values. Each public function validates a value by one
//! rule and returns the errors in the wording of API servers; the result is empty for a valid value.

use std::sync::LazyLock;

use regex::Regex;

const DNS1123_LABEL_FORMAT: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const DNS1123_LABEL_ERROR: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character";
const DNS1123_SUBDOMAIN_ERROR: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character";
const DNS1035_LABEL_FORMAT: &str = "[a-z]([-a-z0-9]*[a-z0-9])?";
const DNS1035_LABEL_ERROR: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character";
const WILDCARD_ERROR: &str = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character";
const QUALIFIED_NAME_FORMAT: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const QUALIFIED_NAME_ERROR: &str =
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
const LABEL_VALUE_FORMAT: &str = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";
const LABEL_VALUE_ERROR: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";

const CONDITION_REASON_FORMAT: &str = "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?";
const CONDITION_REASON_ERROR: &str = "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_'";

static DNS1123_LABEL: LazyLock<Regex> = LazyLock::new(|| compile_anchored(DNS1123_LABEL_FORMAT));
static DNS1123_SUBDOMAIN_FORMAT: LazyLock<String> =
    LazyLock::new(|| format!("{DNS1123_LABEL_FORMAT}(\\.{DNS1123_LABEL_FORMAT})*"));
static DNS1123_SUBDOMAIN: LazyLock<Regex> = LazyLock::new(|| compile_anchored(&DNS1123_SUBDOMAIN_FORMAT));
static DNS1035_LABEL: LazyLock<Regex> = LazyLock::new(|| compile_anchored(DNS1035_LABEL_FORMAT));
static QUALIFIED_NAME: LazyLock<Regex> = LazyLock::new(|| compile_anchored(QUALIFIED_NAME_FORMAT));
static CONDITION_REASON: LazyLock<Regex> = LazyLock::new(|| compile_anchored(CONDITION_REASON_FORMAT));
static LABEL_VALUE: LazyLock<Regex> = LazyLock::new(|| compile_anchored(LABEL_VALUE_FORMAT));

#[expect(clippy::expect_used, reason = "the patterns are constants above, each exercised by the tests below")]
fn compile_anchored(pattern: &str) -> Regex {
    Regex::new(&format!("^(?:{pattern})$")).expect("a constant pattern compiles")
}

/// Message for a text that is too long. As in Kubernetes, the unit is `characters` for DNS names and `bytes` for labels;
/// the length is compared in bytes in both cases.
fn max_length_error(length: usize, unit: &str) -> String {
    format!("must be no more than {length} {unit}")
}

/// Errors of a value that is too long or does not match the pattern.
fn length_and_format_errors(
    value: &str,
    (max_length, unit): (usize, &str),
    pattern: &Regex,
    format_error: impl FnOnce() -> String,
) -> Vec<String> {
    let length_error = (value.len() > max_length).then(|| max_length_error(max_length, unit));
    let format_error = (!pattern.is_match(value)).then(format_error);
    length_error.into_iter().chain(format_error).collect()
}

fn regex_error(message: &str, format: &str, examples: &[&str]) -> String {
    if examples.is_empty() {
        return format!("{message} (regex used for validation is '{format}')");
    }
    let examples: Vec<String> = examples.iter().map(|example| format!("'{example}', ")).collect();
    // API servers join examples with " or " after a comma; the wording is kept, because users search for it.
    format!("{message} (e.g. {} regex used for validation is '{format}')", examples.join(" or ").trim_end())
}

/// Validates a DNS label (RFC 1123): at most 63 lower-case letters, digits and dashes.
pub fn validate_dns1123_label(value: &str) -> Vec<String> {
    length_and_format_errors(value, (63, "characters"), &DNS1123_LABEL, || match DNS1123_SUBDOMAIN.is_match(value) {
        true => "must not contain dots".to_owned(),
        false => regex_error(DNS1123_LABEL_ERROR, DNS1123_LABEL_FORMAT, &["my-name", "123-abc"]),
    })
}

/// Validates a DNS subdomain (RFC 1123): labels joined by dots, at most 253 bytes.
pub fn validate_dns1123_subdomain(value: &str) -> Vec<String> {
    validate_subdomain(value, "characters")
}

fn validate_subdomain(value: &str, unit: &str) -> Vec<String> {
    length_and_format_errors(value, (253, unit), &DNS1123_SUBDOMAIN, || {
        regex_error(DNS1123_SUBDOMAIN_ERROR, &DNS1123_SUBDOMAIN_FORMAT, &["example.com"])
    })
}

/// Validates a DNS label that begins with a letter (RFC 1035).
pub fn validate_dns1035_label(value: &str) -> Vec<String> {
    length_and_format_errors(value, (63, "characters"), &DNS1035_LABEL, || {
        regex_error(DNS1035_LABEL_ERROR, DNS1035_LABEL_FORMAT, &["my-name", "abc-123"])
    })
}

/// Validates the key of a label or an annotation: a name with an optional prefix, which is a DNS subdomain followed by `/`.
pub fn validate_qualified_name(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let name = match value.split_once('/') {
        None => value,
        Some((_, name)) if name.contains('/') => {
            errors.push(format!(
                "a valid label key {} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                regex_error(QUALIFIED_NAME_ERROR, QUALIFIED_NAME_FORMAT, &["MyName", "my.name", "123-abc"])
            ));
            return errors;
        }
        Some((prefix, name)) => {
            if prefix.is_empty() {
                errors.push("prefix part must be non-empty".to_owned());
            } else {
                errors.extend(
                    validate_subdomain(prefix, "bytes").into_iter().map(|error| format!("prefix part {error}")),
                );
            }
            name
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        errors.push(format!("name part {}", max_length_error(63, "bytes")));
    }
    if !QUALIFIED_NAME.is_match(name) {
        errors.push(format!(
            "name part {}",
            regex_error(QUALIFIED_NAME_ERROR, QUALIFIED_NAME_FORMAT, &["MyName", "my.name", "123-abc"])
        ));
    }
    errors
}

/// Validates the value of a label.
pub fn validate_label_value(value: &str) -> Vec<String> {
    length_and_format_errors(value, (63, "bytes"), &LABEL_VALUE, || {
        regex_error(LABEL_VALUE_ERROR, LABEL_VALUE_FORMAT, &["MyValue", "my_value", "12345"])
    })
}

/// Validates the reason of a condition.
pub fn validate_condition_reason(value: &str) -> Vec<String> {
    if CONDITION_REASON.is_match(value) {
        return Vec::new();
    }
    let examples = ["my_name", "MY_NAME", "MyName", "ReasonA,ReasonB", "ReasonA:ReasonB"];
    vec![regex_error(CONDITION_REASON_ERROR, CONDITION_REASON_FORMAT, &examples)]
}

/// Validates a name that is a path segment (`IsValidPathSegmentName`); `is_prefix` is true for a `generateName`.
pub fn validate_path_segment(name: &str, is_prefix: bool) -> Vec<String> {
    if !is_prefix && (name == "." || name == "..") {
        return vec![format!("may not be '{name}'")];
    }
    ["/", "%"].iter().filter(|part| name.contains(**part)).map(|part| format!("may not contain '{part}'")).collect()
}

/// Validates a DNS subdomain that begins with `*.`.
pub fn validate_wildcard_subdomain(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > 253 {
        errors.push(max_length_error(253, "characters"));
    }
    if !value.strip_prefix("*.").is_some_and(|rest| DNS1123_SUBDOMAIN.is_match(rest)) {
        let pattern = format!("\\*\\.{}", *DNS1123_SUBDOMAIN_FORMAT);
        errors.push(regex_error(WILDCARD_ERROR, &pattern, &["*.example.com"]));
    }
    errors
}

/// Validates the name of a port: at most 15 lower-case letters, digits and single dashes, at least one of them a letter.
pub fn validate_port_name(value: &str) -> Vec<String> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let rules = [
        (value.len() > 15, "must be no more than 15 characters"),
        (!value.bytes().all(allowed), "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"),
        (!value.bytes().any(|byte| byte.is_ascii_lowercase()), "must contain at least one letter (a-z)"),
        (value.contains("--"), "must not contain consecutive hyphens"),
        (value.starts_with('-') || value.ends_with('-'), "must not begin or end with a hyphen"),
    ];
    rules.into_iter().filter(|(is_violated, _)| *is_violated).map(|(_, detail)| detail.to_owned()).collect()
}

/// Validates the name of a member cluster by Karmada's rule. The maximum length leaves room for derived names.
pub fn validate_cluster_name(value: &str) -> Vec<String> {
    if value.is_empty() {
        return vec!["must be not empty".to_owned()];
    }
    if value.len() > crate::names::MAX_CLUSTER_NAME_LENGTH {
        return vec![format!("must be no more than {} characters", crate::names::MAX_CLUSTER_NAME_LENGTH)];
    }
    validate_dns1123_label(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wording() {
        insta::assert_yaml_snapshot!([
            ("label", validate_dns1123_label("Bad_Name")),
            ("label with dots", validate_dns1123_label("a.b")),
            ("label too long", validate_dns1123_label(&"a".repeat(64))),
            ("subdomain", validate_dns1123_subdomain("a..b")),
            ("1035", validate_dns1035_label("1a")),
            ("qualified", validate_qualified_name("bad key!")),
            ("qualified twice", validate_qualified_name("a/b/c")),
            ("qualified empty prefix", validate_qualified_name("/b")),
            ("value", validate_label_value("a b")),
            ("cluster", validate_cluster_name("a.b")),
            (
                "fine",
                [validate_dns1123_label("a"), validate_qualified_name("a.b/C_d"), validate_label_value("")].concat()
            ),
        ]);
    }

    #[test]
    fn length_and_path_rules_match_api_servers() {
        // The unit is bytes for the prefix of a key, and characters for a subdomain.
        let prefix = "a".repeat(254);
        assert_eq!(validate_qualified_name(&format!("{prefix}/b")), ["prefix part must be no more than 253 bytes"]);
        assert_eq!(validate_dns1123_subdomain(&prefix), ["must be no more than 253 characters"]);
        assert_eq!(validate_path_segment("..", false), ["may not be '..'"]);
        assert_eq!(validate_path_segment("..", true), [""; 0]);
        assert_eq!(validate_path_segment("a/%", false), ["may not contain '/'", "may not contain '%'"]);
        assert_eq!(validate_condition_reason("ReasonA:ReasonB"), [""; 0]);
        assert!(
            validate_condition_reason("1")[0].starts_with("a condition reason must start with alphabetic character")
        );
    }
}
