//! Removes secrets from manifests and text.

mod names;
mod text;
mod urls;
mod values;

use serde_json::{Map, Value};

use self::names::{is_reference, is_secret_key, may_be_secret_key};
pub(crate) use self::text::redact_text;
use self::values::{CREDENTIALS_KEY, is_encoded_credentials, is_harmless, is_secret_flag};

pub(crate) const REDACTED: &str = "[redacted]";

/// Annotation in which kubectl keeps a copy of the manifest.
const LAST_APPLIED_ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Fields of Secrets and ConfigMaps that map keys to values.
const DATA_FIELDS: [&str; 3] = ["data", "stringData", "binaryData"];

/// Endings of the names of fields that contain lists of names with values, which are often secrets.
const PAIR_LIST_ENDINGS: [&str; 5] = ["env", "envvars", "headers", "params", "parameters"];

/// Field of a Work with its manifests.
const MANIFESTS_FIELD: &str = "manifests";

/// Wildcard for any field or item in a path of the query language.
const WILDCARD: &str = "*";

/// Redacts the values of Secrets and of fields that are named like secrets in a manifest of this kind, and removes the
/// fields that repeat the manifest, such as kubectl's last-applied annotation.
pub(crate) fn redact_manifest(kind: &str, manifest: &mut Value) {
    redact_value(manifest, Position::root(kind));
}

/// Text of a value at a path of a manifest of this kind, redacted as in [`redact_manifest`]. The path is a JSON pointer
/// or a path of the query language.
pub(crate) fn redact_field(kind: &str, path: &str, value: &Value) -> String {
    let names = field_names(path);
    let root = Position { ignores_case: !path.starts_with('/'), ..Position::root(kind) };
    let position = names.iter().fold(root, |position, name| position.field(name));
    let mut value = value.clone();
    redact_value(&mut value, position);
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

/// Text of a column that kubectl prints, without a secret. Columns named `SECRET` contain the name of a Secret.
pub(crate) fn redact_printed_column(name: &str, value: String) -> String {
    let names_secret = is_secret_key(name) && !is_reference(name) && !name.eq_ignore_ascii_case("secret");
    if names_secret && !is_harmless(&value) { REDACTED.to_owned() } else { value }
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
    /// True on a path of the query language, whose names may be spelled in another case than the fields.
    ignores_case: bool,
    /// Number of fields from the root.
    depth: usize,
    /// Name of the field that contains the field.
    parent: &'p str,
    /// Name of the field; empty at the root.
    name: &'p str,
}

impl<'p> Position<'p> {
    fn root(kind: &str) -> Self {
        Self { is_secret: kind == "Secret", is_data: false, ignores_case: false, depth: 0, parent: "", name: "" }
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

    /// True for the value of an environment variable, a header or a parameter whose name is unknown.
    fn is_unnamed_variable(self) -> bool {
        let is_list_of_pairs = || {
            let parent = self.parent.to_ascii_lowercase();
            PAIR_LIST_ENDINGS.iter().any(|end| parent.ends_with(end))
        };
        self.name.eq_ignore_ascii_case("value") && (self.parent == WILDCARD || is_list_of_pairs())
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
        if self.name.eq_ignore_ascii_case(CREDENTIALS_KEY) && is_encoded_credentials(text) {
            return true;
        }
        if self.is_data && self.ignores_case && may_be_secret_key(self.name) {
            return true;
        }
        is_secret_key(self.name) && (self.is_data || !(self.is_label() || is_reference(self.name) || is_harmless(text)))
    }

    /// True for labels, and for selectors of labels.
    fn is_label(self) -> bool {
        ["labels", "matchLabels", "selector"].iter().any(|parent| parent.eq_ignore_ascii_case(self.parent))
    }
}

fn redact_value(value: &mut Value, position: Position<'_>) {
    match value {
        // The keys of a Secret are shown.
        Value::Object(fields) if position.depth < 2 || !position.is_secret_data() => redact_fields(fields, position),
        Value::Array(items) => redact_items(items, position),
        leaf => {
            let is_hidden = leaf.as_str().is_some_and(|text| position.is_secret_text(text));
            if is_hidden || position.is_secret_data() && !leaf.is_null() {
                *leaf = REDACTED.into();
            } else if let Value::String(text) = leaf {
                // Before the manifest becomes JSON, which escapes line breaks and quotes.
                let (redacted, count) = redact_text(text);
                if count > 0 {
                    *text = redacted.into_owned();
                }
            }
        }
    }
}

/// Redacts the items of a list, and the value after a flag such as `--password`.
fn redact_items(items: &mut [Value], position: Position<'_>) {
    let mut follows_flag = false;
    for item in items {
        let text = item.as_str().unwrap_or_default();
        let is_flag = is_secret_flag(text);
        if follows_flag && !text.starts_with('-') && !is_harmless(text) {
            *item = REDACTED.into();
        } else {
            redact_value(item, position);
        }
        follows_flag = is_flag;
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
    let names = pair_names(fields);
    let (is_pair, is_secret_pair) = (!names.is_empty(), names.iter().any(|name| is_secret_key(name)));
    let is_credentials_pair = names.contains(&CREDENTIALS_KEY);
    for (name, value) in fields {
        let mut child = position.field(name);
        if is_pair && name == "value" {
            child.parent = "";
            let is_docker_auth = is_credentials_pair && value.as_str().is_some_and(is_encoded_credentials);
            if is_secret_pair || is_docker_auth {
                hide_texts(value);
            }
        }
        redact_value(value, child);
    }
}

/// Names of the value in a pair, such as an environment variable, a parameter or a header.
fn pair_names(fields: &Map<String, Value>) -> Vec<&str> {
    // The keys of selectors, taints and tolerations are those of labels and taints.
    let is_condition = ["operator", "effect"].iter().any(|field| fields.contains_key(*field));
    let key = fields.get("key").filter(|_| !is_condition);
    fields.get("name").into_iter().chain(key).filter_map(Value::as_str).collect()
}

/// Replaces a text, or the texts of a list.
fn hide_texts(value: &mut Value) {
    match value {
        Value::String(_) => *value = REDACTED.into(),
        Value::Array(items) => items.iter_mut().for_each(hide_texts),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

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
    #[case::flags("Pod", json!({"args": ["--password", "x", "--token", "--verbose", "y", "--token-file", "z", "--use-token", "true"]}),
        json!({"args": ["--password", REDACTED, "--token", "--verbose", "y", "--token-file", "z", "--use-token", "true"]}))]
    #[case::pairs("Task", json!({"params": [{"name": "apiToken", "value": ["x", "y"]}, {"key": "DB_PASSWORD", "value": "x"},
                {"name": "db", "key": "password", "value": "x"}, {"name": "level", "value": "info"}],
            "tolerations": [{"key": "token", "operator": "Equal", "value": "x"}],
            "httpHeaders": [{"name": "Authorization", "value": "Basic x"}, {"name": "Accept", "value": "text/html"}]}),
        json!({"params": [{"name": "apiToken", "value": [REDACTED, REDACTED]}, {"key": "DB_PASSWORD", "value": REDACTED},
                {"name": "db", "key": "password", "value": REDACTED}, {"name": "level", "value": "info"}],
            "tolerations": [{"key": "token", "operator": "Equal", "value": "x"}],
            "httpHeaders": [{"name": "Authorization", "value": REDACTED}, {"name": "Accept", "value": "text/html"}]}))]
    #[case::texts("ConfigMap", json!({"data": {"config": "tokens:\n- a\n- b\nlevel: info"}}),
        json!({"data": {"config": "tokens:\n[redacted]\nlevel: info"}}))]
    #[case::encoded_credentials("ConfigMap", json!({"data": {"auth": "YXBwOnBhc3M="}, "spec": {"auth": "basic"}}),
        json!({"data": {"auth": REDACTED}, "spec": {"auth": "basic"}}))]
    #[case::variable_with_credentials("Pod", json!({"env": [{"name": "auth", "value": "YXBwOnBhc3M="}, {"name": "auth", "value": "basic"}]}),
        json!({"env": [{"name": "auth", "value": REDACTED}, {"name": "auth", "value": "basic"}]}))]
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
    #[case::data_in_another_case("ConfigMap", ".data.tokenold", json!("x"), REDACTED)]
    #[case::variable_in_another_case("ConfigMap", ".data.rediscli_auth", json!("x"), REDACTED)]
    #[case::credentials_in_another_case("ConfigMap", ".data.AUTH", json!("YXBwOnBhc3M="), REDACTED)]
    #[case::longer_word("ConfigMap", "/data/tokenizer", json!("x"), "x")]
    #[case::dotted_key("ConfigMap", "/data/password.txt", json!("x"), REDACTED)]
    #[case::dotted_key_in_brackets("ConfigMap", ".data[password.txt]", json!("x"), REDACTED)]
    #[case::quoted_key("ConfigMap", ".data[\"db.password\"]", json!("x"), REDACTED)]
    #[case::escaped_key("ConfigMap", "/data/a~1token", json!("x"), REDACTED)]
    #[case::any_data("ConfigMap", ".data[*]", json!("x"), REDACTED)]
    #[case::whole_config("ConfigMap", "/data", json!({"token": "x", "b": "y"}), r#"{"b":"y","token":"[redacted]"}"#)]
    #[case::text_in_config("ConfigMap", "/data", json!({"c": "password: \"a b\"\nn: 1"}), r#"{"c":"password: [redacted]\nn: 1"}"#)]
    #[case::data_source("Secret", "/dataSource/name", json!("x"), "x")]
    #[case::variable("Deployment", ".spec.template.spec.containers[0].env[0].value", json!("x"), REDACTED)]
    #[case::variables("Deployment", ".spec.template.spec.containers.env.value", json!("x"), REDACTED)]
    #[case::variable_pointer("Deployment", "/spec/template/spec/containers/0/env/0/value", json!("x"), REDACTED)]
    #[case::whole_variable("Deployment", "/spec/template/spec/containers/0/env/0", json!({"name": "PASSWORD", "value": "x"}), r#"{"name":"PASSWORD","value":"[redacted]"}"#)]
    #[case::header("Pod", "/spec/containers/0/livenessProbe/httpGet/httpHeaders/0/value", json!("x"), REDACTED)]
    #[case::variables_of_a_chart("App", ".spec.extraEnvVars.value", json!("x"), REDACTED)]
    #[case::parameters("Task", ".spec.params.value", json!("x"), REDACTED)]
    #[case::parameter_pointer("Workflow", "/spec/arguments/parameters/0/value", json!("x"), REDACTED)]
    #[case::environment("Stage", ".spec.environment.value", json!("x"), "x")]
    #[case::annotations("Deployment", "/metadata/annotations", json!({LAST_APPLIED_ANNOTATION: "{}", "a": "b"}), r#"{"a":"b"}"#)]
    #[case::last_applied("Deployment", "/metadata/annotations/kubectl.kubernetes.io~1last-applied-configuration", json!("{}"), REDACTED)]
    #[case::last_applied_column("Deployment", ".metadata.annotations[kubectl.kubernetes.io/last-applied-configuration]", json!("{}"), REDACTED)]
    #[case::number("Deployment", "/spec/replicas", json!(3), "3")]
    fn fields_are_redacted(#[case] kind: &str, #[case] path: &str, #[case] value: Value, #[case] expected: &str) {
        assert_eq!(redact_field(kind, path, &value), expected);
    }

    #[rstest]
    #[case::password("Password", "x", REDACTED)]
    #[case::spaces("Api Token", "x", REDACTED)]
    #[case::count("Tokens", "3", "3")]
    #[case::name_of_a_secret("Secret", "web-tls", "web-tls")]
    #[case::reference("Secret-Name", "web-tls", "web-tls")]
    #[case::other("Status", "Running", "Running")]
    fn printed_columns_are_redacted(#[case] name: &str, #[case] value: &str, #[case] expected: &str) {
        assert_eq!(redact_printed_column(name, value.to_owned()), expected);
    }
}
