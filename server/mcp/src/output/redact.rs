//! Removes secrets from manifests and text.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::{Captures, Regex};
use serde_json::{Map, Value};

pub(crate) const REDACTED: &str = "[redacted]";

/// Annotation in which kubectl keeps a copy of the manifest.
const LAST_APPLIED_ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Fields of Secrets and ConfigMaps that map keys to values.
const DATA_FIELDS: [&str; 3] = ["data", "stringData", "binaryData"];

/// Field of a Work with its manifests.
const MANIFESTS_FIELD: &str = "manifests";

/// Wildcard for any field or item in a path of the query language.
const WILDCARD: &str = "*";

/// Suffixes of the names of fields that refer to a secret or describe it.
const REFERENCE_SUFFIXES: [&str; 15] = [
    "name",
    "names",
    "namespace",
    "ref",
    "path",
    "file",
    "url",
    "type",
    "kind",
    "mode",
    "policy",
    "class",
    "provider",
    "algorithm",
    "version",
];

/// A word that names a secret, as part of a key.
const SECRET_WORDS: &str = "pass(?:word|wd|phrase)?|pwd|secret|token|api[-_]?key|access[-_]?key|private[-_]?key|credentials?|authorization|session[-_]?key|encryption[-_]?key|signature";

fn compile(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a constant pattern compiles")
}

/// Patterns of secrets that are recognized by their form alone.
static SECRET_PATTERNS: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    [
        // PEM blocks, including truncated ones.
        r"(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\z)",
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
    .map(|pattern| compile(pattern))
    .collect()
});

/// Patterns with a key and a secret: passwords of URLs, credentials of an Authorization header, and values after a key
/// that names a secret.
static KEYED_SECRET_PATTERNS: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    let key = format!(
        r#"(?i)(["']?[A-Za-z0-9_.-]*(?:{SECRET_WORDS})[A-Za-z0-9_.-]*(?:["']\s*[:=]\s*|\s*=\s*|:\s+))("[^"]*"|'[^']*'|[^\s,;&"'\]}}]+)"#
    );
    [
        r"([a-zA-Z][a-zA-Z0-9+.-]*://[^\s/:@]*:)([^\s/@]+)(?:@)",
        r"(?i)(\b(?:bearer|basic)\s+)([A-Za-z0-9._~+/=-]{8,})",
        &key,
    ]
    .iter()
    .map(|pattern| compile(pattern))
    .collect()
});

static SECRET_KEY_PATTERN: LazyLock<Regex> =
    LazyLock::new(|| compile(&format!(r"(?i)(?:^|[^a-z])(?:{SECRET_WORDS})s?(?:$|[^a-z])")));

/// True for values that are not secrets even if their key names one: booleans, absent values and short numbers.
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

/// Replaces secrets in a text. Returns the text and the number of replaced secrets.
pub(crate) fn redact_text(text: &str) -> (Cow<'_, str>, usize) {
    let mut count = 0;
    let mut text = Cow::Borrowed(text);
    for regex in SECRET_PATTERNS.iter() {
        if regex.is_match(&text) {
            count += regex.find_iter(&text).count();
            text = Cow::Owned(regex.replace_all(&text, REDACTED).into_owned());
        }
    }
    for (nth, regex) in KEYED_SECRET_PATTERNS.iter().enumerate() {
        if !regex.is_match(&text) {
            continue;
        }
        let replaced = regex.replace_all(&text, |captures: &Captures<'_>| {
            let (key, value) = (&captures[1], &captures[2]);
            // The previous pattern replaces the credentials of an Authorization header.
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
    // Separates the words of a name in camel case.
    let mut words = String::new();
    for character in name.chars() {
        if character.is_ascii_uppercase() && words.ends_with(|last: char| last.is_ascii_lowercase()) {
            words.push('_');
        }
        words.push(character);
    }
    SECRET_KEY_PATTERN.is_match(&words)
}

/// Redacts the values of Secrets and of fields that are named like secrets in a manifest of this kind, and removes the
/// fields that repeat the manifest, such as kubectl's last-applied annotation.
pub(crate) fn redact_manifest(kind: &str, manifest: &mut Value) {
    redact_value(manifest, Position::root(kind));
}

/// Text of a value at a path of a manifest of this kind, redacted as in [`redact_manifest`]. The path is a JSON pointer
/// or a path of the query language.
pub(crate) fn redact_field(kind: &str, path: &str, value: &Value) -> String {
    let names = field_names(path);
    let position = names.iter().fold(Position::root(kind), |position, name| position.field(name));
    let mut value = value.clone();
    redact_value(&mut value, position);
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

/// Names of the fields on a path. Indexes of lists are left out, as the query language permits.
fn field_names(path: &str) -> Vec<String> {
    let mut names: Vec<String> = match path.strip_prefix('/') {
        Some(pointer) => pointer.split('/').map(|name| name.replace("~1", "/").replace("~0", "~")).collect(),
        None => query_path_names(path),
    };
    names.retain(|name| name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_digit()));
    names
}

/// Names of the fields on a path such as `.metadata.labels[app.kubernetes.io/name]`.
fn query_path_names(path: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        rest = rest.trim_start_matches('.');
        if let Some(inner) = rest.strip_prefix('[') {
            let (inside, after) = inner.split_once(']').unwrap_or((inner, ""));
            names.push(inside.trim_matches(['"', '\'']).to_owned());
            rest = after;
            continue;
        }
        let end = rest.find(['.', '[']).unwrap_or(rest.len());
        if end > 0 {
            names.push(rest[..end].to_owned());
        }
        rest = &rest[end..];
    }
    names
}

/// Position of a value in a manifest. The query language compares names without regard to case.
#[derive(Debug, Clone, Copy)]
struct Position<'p> {
    /// True in a Secret, or in a manifest of an unknown kind.
    is_secret: bool,
    /// True below `data`, `stringData` and `binaryData` of the manifest, and in these fields themselves.
    is_data: bool,
    /// Number of fields from the root.
    depth: usize,
    /// Name of the field that contains the field.
    parent: &'p str,
    /// Name of the field; empty at the root.
    name: &'p str,
}

impl<'p> Position<'p> {
    fn root(kind: &str) -> Self {
        Self { is_secret: kind == "Secret", is_data: false, depth: 0, parent: "", name: "" }
    }

    fn field(self, name: &'p str) -> Self {
        let is_list_of_manifests = self.name.eq_ignore_ascii_case(MANIFESTS_FIELD);
        if is_list_of_manifests && name == WILDCARD {
            return self;
        }
        // A manifest of an unknown kind may be a Secret.
        let base = match is_list_of_manifests || self.name == WILDCARD {
            true => Self { is_secret: true, depth: 0, ..self },
            false => self,
        };
        let is_data_root =
            base.depth == 0 && (name == WILDCARD || DATA_FIELDS.iter().any(|data| data.eq_ignore_ascii_case(name)));
        Self { is_data: base.is_data || is_data_root, depth: base.depth + 1, parent: self.name, name, ..base }
    }

    /// True for data of a Secret, whose values are always hidden.
    fn is_secret_data(self) -> bool {
        self.is_secret && self.is_data
    }

    /// True for the value of an environment variable whose name is unknown.
    fn is_unnamed_variable(self) -> bool {
        self.name.eq_ignore_ascii_case("value") && (self.parent == WILDCARD || self.parent.eq_ignore_ascii_case("env"))
    }

    /// True if a text at this position is a secret.
    fn is_secret_text(self, text: &str) -> bool {
        // A wildcard includes fields that have the name of a secret.
        if self.name == WILDCARD
            || self.name.eq_ignore_ascii_case(LAST_APPLIED_ANNOTATION)
            || self.is_unnamed_variable()
        {
            return true;
        }
        is_secret_key(self.name) && (self.is_data || !(self.is_label() || is_reference(self.name) || is_harmless(text)))
    }

    /// True for labels, and for selectors of labels.
    fn is_label(self) -> bool {
        ["labels", "matchLabels", "selector"].iter().any(|parent| parent.eq_ignore_ascii_case(self.parent))
    }
}

/// True for a name such as `secretName`, whose value refers to a secret or describes it.
fn is_reference(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    REFERENCE_SUFFIXES.iter().any(|end| name.ends_with(end))
}

fn redact_value(value: &mut Value, position: Position<'_>) {
    match value {
        // The keys of a Secret are shown.
        Value::Object(fields) if position.depth < 2 || !position.is_secret_data() => redact_fields(fields, position),
        Value::Array(items) => items.iter_mut().for_each(|item| redact_value(item, position)),
        leaf => {
            let is_hidden = leaf.as_str().is_some_and(|text| position.is_secret_text(text));
            if is_hidden || position.is_secret_data() && !leaf.is_null() {
                *leaf = REDACTED.into();
            }
        }
    }
}

fn redact_fields(fields: &mut Map<String, Value>, position: Position<'_>) {
    // A manifest in a manifest, such as in a Work.
    let kind = fields.get("kind").and_then(Value::as_str).filter(|_| fields.contains_key("apiVersion"));
    let position = kind.filter(|_| !position.is_data).map_or(position, Position::root);
    fields.remove(LAST_APPLIED_ANNOTATION);
    if position.name == "metadata" {
        fields.remove("managedFields");
    }
    // Environment variables and other pairs of `name` and `value`.
    let name = fields.get("name").and_then(Value::as_str);
    let (is_pair, is_secret_pair) = (name.is_some(), name.is_some_and(is_secret_key));
    for (name, value) in fields {
        let mut child = position.field(name);
        if is_pair && name == "value" {
            child.parent = "";
            if is_secret_pair && value.is_string() {
                *value = REDACTED.into();
            }
        }
        redact_value(value, child);
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
    #[case::truncated_pem("-----BEGIN PRIVATE KEY-----\nMIIE", "[redacted]", 1)]
    #[case::pem_in_json(
        r#"{"key":"-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\n","n":1}"#,
        r#"{"key":"[redacted]\n","n":1}"#,
        1
    )]
    #[case::pgp(
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\nlQOY\n-----END PGP PRIVATE KEY BLOCK----- b",
        "[redacted] b",
        1
    )]
    #[case::password("login password=hunter22 ok", "login password=[redacted] ok", 1)]
    #[case::quoted(r#"{"db_password": "a b", "x": 1}"#, r#"{"db_password": [redacted], "x": 1}"#, 1)]
    #[case::variable("DB_TOKEN=abcdefg", "DB_TOKEN=[redacted]", 1)]
    #[case::header("Authorization: Bearer abcdefghijk", "Authorization: Bearer [redacted]", 1)]
    #[case::url("postgres://app:s3cr3t@db/app", "postgres://app:[redacted]@db/app", 1)]
    #[case::an_image("registry/secret-store:1.2.3", "registry/secret-store:1.2.3", 0)]
    #[case::an_author("author: Bob", "author: Bob", 0)]
    #[case::a_boolean("automountServiceAccountToken: false", "automountServiceAccountToken: false", 0)]
    #[case::no_secret("Back-off restarting failed container", "Back-off restarting failed container", 0)]
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
    #[case("passwords.txt", true)]
    #[case("tls.key", false)]
    #[case("LOG_LEVEL", false)]
    #[case("AUTHOR", false)]
    #[case("PASSENGERS", false)]
    fn keys_that_name_secrets_are_recognized(#[case] name: &str, #[case] expected: bool) {
        assert_eq!(is_secret_key(name), expected);
    }

    #[rstest]
    #[case::secret("Secret",
        json!({"data": {"a": "c2VjcmV0"}, "metadata": {"name": "s", "managedFields": [], "annotations": {LAST_APPLIED_ANNOTATION: "{}", "b": "c"}}}),
        json!({"data": {"a": REDACTED}, "metadata": {"name": "s", "annotations": {"b": "c"}}}))]
    #[case::secret_with_odd_keys("Secret", json!({"stringData": {"kind": "a", "apiVersion": "true", "n": 1}}),
        json!({"stringData": {"kind": REDACTED, "apiVersion": REDACTED, "n": REDACTED}}))]
    #[case::config_map("ConfigMap", json!({"data": {"db.password": "true", "passwords.txt": "a", "level": "info"}}),
        json!({"data": {"db.password": REDACTED, "passwords.txt": REDACTED, "level": "info"}}))]
    #[case::environment("Pod",
        json!({"spec": {"containers": [{"name": "token", "env": [{"name": "DB_PASSWORD", "value": "x"},
            {"name": "LEVEL", "value": "info"}, {"name": "API_TOKEN", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}]}]}}),
        json!({"spec": {"containers": [{"name": "token", "env": [{"name": "DB_PASSWORD", "value": REDACTED},
            {"name": "LEVEL", "value": "info"}, {"name": "API_TOKEN", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}]}]}}))]
    #[case::fields("Database", json!({"spec": {"password": "x", "apiTokens": ["y"], "secretName": "s", "tokenTTL": 5,
            "usePassword": "true", "dataSource": {"name": "d"}}, "metadata": {"labels": {"token": "ci"}}}),
        json!({"spec": {"password": REDACTED, "apiTokens": [REDACTED], "secretName": "s", "tokenTTL": 5,
            "usePassword": "true", "dataSource": {"name": "d"}}, "metadata": {"labels": {"token": "ci"}}}))]
    #[case::in_a_work("Work",
        json!({"spec": {"workload": {"manifests": [{"apiVersion": "v1", "kind": "Secret", "data": {"a": "x"}}]}}}),
        json!({"spec": {"workload": {"manifests": [{"apiVersion": "v1", "kind": "Secret", "data": {"a": REDACTED}}]}}}))]
    fn manifests_are_redacted(#[case] kind: &str, #[case] mut manifest: Value, #[case] expected: Value) {
        redact_manifest(kind, &mut manifest);
        assert_eq!(manifest, expected);
    }

    #[rstest]
    #[case::pointer("Secret", "/data/password", json!("eA=="), REDACTED)]
    #[case::whole_data("Secret", "/data", json!({"a": "x", "b": "y"}), r#"{"a":"[redacted]","b":"[redacted]"}"#)]
    #[case::upper_case("Secret", ".DATA.a", json!("x"), REDACTED)]
    #[case::any_key("Secret", ".*.a", json!("x"), REDACTED)]
    #[case::any_field("Secret", ".[*][*]", json!("x"), REDACTED)]
    #[case::in_a_work("Work", ".spec.workload.manifests[0].data.a", json!("x"), REDACTED)]
    #[case::in_any_manifest("Work", ".spec.workload.manifests[*].stringData.a", json!("x"), REDACTED)]
    #[case::any_list("Work", ".spec.workload[*][*].data.a", json!("x"), REDACTED)]
    #[case::name_in_a_work("Work", ".spec.workload.manifests[*].metadata.name", json!("x"), "x")]
    #[case::image("Deployment", ".spec.template.spec.containers[*].image", json!("nginx"), "nginx")]
    #[case::type_of_a_secret("Secret", ".type", json!("Opaque"), "Opaque")]
    #[case::data("ConfigMap", ".data.level", json!("info"), "info")]
    #[case::named_data("ConfigMap", ".data.db_password", json!("x"), REDACTED)]
    #[case::dotted_key("ConfigMap", "/data/password.txt", json!("x"), REDACTED)]
    #[case::dotted_key_in_brackets("ConfigMap", ".data[password.txt]", json!("x"), REDACTED)]
    #[case::quoted_key("ConfigMap", ".data[\"db.password\"]", json!("x"), REDACTED)]
    #[case::escaped_key("ConfigMap", "/data/a~1token", json!("x"), REDACTED)]
    #[case::any_data("ConfigMap", ".data[*]", json!("x"), REDACTED)]
    #[case::whole_config("ConfigMap", "/data", json!({"token": "x", "b": "y"}), r#"{"b":"y","token":"[redacted]"}"#)]
    #[case::data_source("Secret", "/dataSource/name", json!("x"), "x")]
    #[case::variable("Deployment", ".spec.template.spec.containers[0].env[0].value", json!("x"), REDACTED)]
    #[case::variables("Deployment", ".spec.template.spec.containers.env.value", json!("x"), REDACTED)]
    #[case::variable_pointer("Deployment", "/spec/template/spec/containers/0/env/0/value", json!("x"), REDACTED)]
    #[case::whole_variable("Deployment", "/spec/template/spec/containers/0/env/0", json!({"name": "PASSWORD", "value": "x"}), r#"{"name":"PASSWORD","value":"[redacted]"}"#)]
    #[case::environment("Stage", ".spec.environment.value", json!("x"), "x")]
    #[case::annotations("Deployment", "/metadata/annotations", json!({LAST_APPLIED_ANNOTATION: "{}", "a": "b"}), r#"{"a":"b"}"#)]
    #[case::last_applied("Deployment", "/metadata/annotations/kubectl.kubernetes.io~1last-applied-configuration", json!("{}"), REDACTED)]
    #[case::last_applied_column("Deployment", ".metadata.annotations[kubectl.kubernetes.io/last-applied-configuration]", json!("{}"), REDACTED)]
    #[case::number("Deployment", "/spec/replicas", json!(3), "3")]
    fn fields_are_redacted(#[case] kind: &str, #[case] path: &str, #[case] value: Value, #[case] expected: &str) {
        assert_eq!(redact_field(kind, path, &value), expected);
    }
}
