//! Removes secrets from manifests and text.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::{Captures, Regex};
use serde_json::Value;

pub(crate) const REDACTED: &str = "[redacted]";

/// Annotation with which kubectl keeps a copy of the manifest.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A word that names a secret, as part of a key.
const SECRET_WORDS: &str = "pass(?:word|wd|phrase)?|pwd|secret|token|api[-_]?key|access[-_]?key|private[-_]?key|credentials?|authorization|session[-_]?key|encryption[-_]?key|signature";

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a constant pattern compiles")
}

/// Values that are secrets by their form.
static SECRETS: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    [
        // PEM blocks, also cut ones.
        r"(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\z)",
        // JSON web tokens.
        r"\beyJ[A-Za-z0-9_-]{6,}\.eyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]*",
        // Keys of AWS, Google, GitHub, GitLab, Slack, Stripe, OpenAI and Anthropic.
        r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}\b",
        r"\bAIza[A-Za-z0-9_-]{35}",
        r"\bya29\.[A-Za-z0-9_-]{20,}",
        r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,}|glpat-[A-Za-z0-9_-]{20,})",
        r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",
        r"\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,}",
        r"\bsk-(?:ant-|proj-)?[A-Za-z0-9_-]{20,}",
    ]
    .iter()
    .map(|pattern| regex(pattern))
    .collect()
});

/// Passwords of URLs, credentials of an Authorization header, and values after a key that names a secret.
static KEYED: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    let key = format!(
        r#"(?i)(["']?[A-Za-z0-9_.-]*(?:{SECRET_WORDS})[A-Za-z0-9_.-]*(?:["']\s*[:=]\s*|\s*=\s*|:\s+))("[^"]*"|'[^']*'|[^\s,;&"'\]}}]+)"#
    );
    [
        r"([a-zA-Z][a-zA-Z0-9+.-]*://[^\s/:@]*:)([^\s/@]+)(?:@)",
        r"(?i)(\b(?:bearer|basic)\s+)([A-Za-z0-9._~+/=-]{8,})",
        &key,
    ]
    .iter()
    .map(|pattern| regex(pattern))
    .collect()
});

static SECRET_KEY: LazyLock<Regex> =
    LazyLock::new(|| regex(&format!(r"(?i)(?:^|[^a-z])(?:{SECRET_WORDS})(?:$|[^a-z]|s$)")));

/// Values of a secret-like key that are no secrets: references, switches and numbers.
fn is_harmless(value: &str) -> bool {
    let value = value.trim_matches(['"', '\'']);
    value.is_empty()
        || value == REDACTED
        || matches!(
            value.to_ascii_lowercase().as_str(),
            "true" | "false" | "null" | "none" | "nil" | "yes" | "no" | "***"
        )
        || (value.len() < 6 && value.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Replaces secrets in a text; returns their number.
pub(crate) fn redact_text(text: &str) -> (Cow<'_, str>, usize) {
    let mut count = 0;
    let mut text = Cow::Borrowed(text);
    for regex in SECRETS.iter() {
        if regex.is_match(&text) {
            count += regex.find_iter(&text).count();
            text = Cow::Owned(regex.replace_all(&text, REDACTED).into_owned());
        }
    }
    for (nth, regex) in KEYED.iter().enumerate() {
        if !regex.is_match(&text) {
            continue;
        }
        let replaced = regex.replace_all(&text, |captures: &Captures<'_>| {
            let (key, value) = (&captures[1], &captures[2]);
            // The parts of an Authorization header are matched by the pattern before.
            let is_scheme = ["bearer", "basic"].contains(&value.to_ascii_lowercase().as_str());
            if is_harmless(value) || is_scheme {
                return captures[0].to_owned();
            }
            count += 1;
            format!("{key}{REDACTED}{}", if nth == 0 { "@" } else { "" })
        });
        text = Cow::Owned(replaced.into_owned());
    }
    (text, count)
}

/// True for a name such as `DB_PASSWORD` or `apiKey`.
pub(crate) fn is_secret_key(name: &str) -> bool {
    // Words of a name in camel case.
    let mut words = String::new();
    for character in name.chars() {
        if character.is_ascii_uppercase() && words.ends_with(|last: char| last.is_ascii_lowercase()) {
            words.push('_');
        }
        words.push(character);
    }
    SECRET_KEY.is_match(&words)
}

/// Removes from a manifest the values of Secrets, of environment variables and data whose names are those of secrets,
/// and fields that repeat the manifest.
pub(crate) fn redact_manifest(object: &mut Value) {
    let is_secret = object["kind"] == "Secret";
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove(LAST_APPLIED);
        }
    }
    for field in ["data", "stringData", "binaryData"] {
        for (key, value) in object.get_mut(field).and_then(Value::as_object_mut).into_iter().flatten() {
            if is_secret || is_secret_key(key) {
                *value = REDACTED.into();
            }
        }
    }
    redact_values(object);
}

/// Redacts `{"name": "DB_PASSWORD", "value": …}` in any list.
fn redact_values(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(redact_values),
        Value::Object(fields) => {
            let is_named_secret = fields.get("name").and_then(Value::as_str).is_some_and(is_secret_key);
            if is_named_secret && fields.get("value").is_some_and(Value::is_string) {
                fields.insert("value".to_owned(), REDACTED.into());
            }
            fields.values_mut().for_each(redact_values);
        }
        _ => {}
    }
}

/// A value of a changed field, redacted by the field's path and the object's kind.
pub(crate) fn redact_difference(kind: &str, path: &str, value: &Value) -> String {
    let mut value = value.clone();
    let is_data =
        ["data", "stringData", "binaryData"].iter().any(|field| path.trim_start_matches(['.', '/']).starts_with(field));
    let last = path.rsplit(['.', '/']).next().unwrap_or_default();
    // The name of an environment variable is beside its value, not in the path.
    let is_environment = path.contains("env") && last == "value";
    if (is_data && (kind == "Secret" || is_secret_key(last)))
        || is_environment
        || path.contains("last-applied-configuration")
    {
        return REDACTED.to_owned();
    }
    redact_manifest(&mut value);
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case::jwt("token is eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-_", "token is [redacted]", 1)]
    #[case::aws("key AKIAIOSFODNN7EXAMPLE used", "key [redacted] used", 1)]
    #[case::github("ghp_0123456789abcdefghijABCDEFGHIJ0123456789", "[redacted]", 1)]
    #[case::slack("xoxb-123456789012-abcdef", "[redacted]", 1)]
    #[case::pem("a -----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY----- b", "a [redacted] b", 1)]
    #[case::cut_pem("-----BEGIN PRIVATE KEY-----\nMIIE", "[redacted]", 1)]
    #[case::password("login password=hunter22 ok", "login password=[redacted] ok", 1)]
    #[case::quoted(r#"{"db_password": "a b", "x": 1}"#, r#"{"db_password": [redacted], "x": 1}"#, 1)]
    #[case::variable("DB_TOKEN=abcdefg", "DB_TOKEN=[redacted]", 1)]
    #[case::header("Authorization: Bearer abcdefghijk", "Authorization: Bearer [redacted]", 1)]
    #[case::url("postgres://app:s3cr3t@db/app", "postgres://app:[redacted]@db/app", 1)]
    #[case::an_image("registry/secret-store:1.2.3", "registry/secret-store:1.2.3", 0)]
    #[case::an_author("author: Bob", "author: Bob", 0)]
    #[case::a_switch("automountServiceAccountToken: false", "automountServiceAccountToken: false", 0)]
    #[case::nothing("Back-off restarting failed container", "Back-off restarting failed container", 0)]
    #[case::a_sentence("cannot find secret in namespace shop", "cannot find secret in namespace shop", 0)]
    fn text_is_redacted(#[case] text: &str, #[case] expected: &str, #[case] count: usize) {
        let (redacted, found) = redact_text(text);
        assert_eq!((redacted.as_ref(), found), (expected, count));
    }

    #[rstest]
    #[case("DB_PASSWORD", true)]
    #[case("apiKey", true)]
    #[case("API_KEYS", true)]
    #[case("clientSecret", true)]
    #[case("tls.key", false)]
    #[case("LOG_LEVEL", false)]
    #[case("AUTHOR", false)]
    #[case("PASSENGERS", false)]
    fn keys_of_secrets(#[case] name: &str, #[case] expected: bool) {
        assert_eq!(is_secret_key(name), expected);
    }

    #[test]
    fn manifests_are_redacted() {
        let mut secret = json!({"kind": "Secret", "data": {"a": "c2VjcmV0"}, "metadata": {"name": "s", "managedFields": [],
            "annotations": {LAST_APPLIED: "{}", "b": "c"}}});
        redact_manifest(&mut secret);
        assert_eq!(
            secret,
            json!({"kind": "Secret", "data": {"a": REDACTED}, "metadata": {"name": "s", "annotations": {"b": "c"}}})
        );
        let mut pod = json!({"kind": "Pod", "spec": {"containers": [{"name": "token", "env": [
            {"name": "DB_PASSWORD", "value": "x"}, {"name": "LEVEL", "value": "info"},
            {"name": "API_TOKEN", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}]}]}});
        redact_manifest(&mut pod);
        assert_eq!(
            pod["spec"]["containers"][0]["env"],
            json!([{"name": "DB_PASSWORD", "value": REDACTED},
            {"name": "LEVEL", "value": "info"}, {"name": "API_TOKEN", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}])
        );
    }

    #[rstest]
    #[case("Secret", "data.password", json!("eA=="), REDACTED)]
    #[case("ConfigMap", "data.level", json!("info"), "info")]
    #[case("ConfigMap", "data.db_password", json!("x"), REDACTED)]
    #[case("Deployment", "spec.template.spec.containers[0].env[0].value", json!("x"), REDACTED)]
    #[case("Deployment", "spec.template.spec.containers[0].env[0]", json!({"name": "PASSWORD", "value": "x"}), r#"{"name":"PASSWORD","value":"[redacted]"}"#)]
    #[case("Deployment", "spec.replicas", json!(3), "3")]
    fn differences_are_redacted(#[case] kind: &str, #[case] path: &str, #[case] value: Value, #[case] expected: &str) {
        assert_eq!(redact_difference(kind, path, &value), expected);
    }
}
