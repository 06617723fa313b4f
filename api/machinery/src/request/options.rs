//! Options of a request, parsed from its query and body, with the API server's messages.

use std::time::Duration;

use crate::field::FieldError;
use crate::list_options;
use crate::request::{Query, RequestInfo};
use crate::selector::{FieldRequirement, FieldSelector, Selector, SelectorError};
use crate::status::{ApiError, ApiResult};
use serde_json::{Value, json};

/// Handling of unknown and duplicate fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FieldValidation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

impl FieldValidation {
    /// Drops the findings (`Ignore`), adds them to the warnings (`Warn`), or fails with the error that `refuse` creates from
    /// them (`Strict`).
    pub fn enforce(
        self,
        mut findings: Vec<String>,
        warnings: &mut Vec<String>,
        refuse: impl FnOnce(&[String]) -> ApiError,
    ) -> ApiResult<()> {
        match self {
            Self::Ignore => {}
            Self::Warn => warnings.append(&mut findings),
            Self::Strict if findings.is_empty() => {}
            Self::Strict => return Err(refuse(&findings)),
        }
        Ok(())
    }
}

/// Options of create, update and patch.
#[derive(Debug, Clone, Default)]
pub struct WriteOptions {
    pub dry_run: bool,
    /// Field manager, from the option or the user agent.
    pub manager: String,
    pub field_validation: FieldValidation,
    /// Patch only: take over conflicting fields.
    pub force: bool,
    /// The options as an object, for admission.
    pub raw: Value,
}

impl WriteOptions {
    /// Parses the options of a write. `kind` is `CreateOptions`, `UpdateOptions` or `PatchOptions`; `is_apply` is true for
    /// server-side apply.
    pub fn parse(kind: &str, query: &Query, user_agent: &str, is_apply: bool) -> ApiResult<Self> {
        let mut errors = Vec::new();
        let dry_run: Vec<String> = query.all("dryRun").map(str::to_owned).collect();
        let manager = query.get("fieldManager").unwrap_or_default();
        if kind == "PatchOptions" {
            if is_apply && manager.is_empty() {
                errors.push(FieldError::required("fieldManager", "is required for apply patch"));
            }
            if !is_apply && query.has("force") {
                errors.push(FieldError::forbidden("force", "may not be specified for non-apply patch"));
            }
        }
        if manager.len() > 128 {
            errors.push(FieldError::too_long("fieldManager", 128));
        }
        for (at, c) in manager.char_indices().filter(|(_, c)| !is_printable(*c)) {
            let detail = format!("invalid character U+{:04X} (at position {at})", u32::from(c));
            errors.push(FieldError::invalid("fieldManager", manager, detail));
        }
        errors.extend(check_dry_run(&dry_run));
        let mut field_validation = FieldValidation::Warn;
        match query.get("fieldValidation") {
            None | Some("Warn") => {}
            Some("Ignore") => field_validation = FieldValidation::Ignore,
            Some("Strict") => field_validation = FieldValidation::Strict,
            Some(other) => {
                let supported = ["", "Ignore", "Strict", "Warn"];
                errors.push(FieldError::not_supported_sorted("fieldValidation", &json!(other), &supported));
            }
        }
        if !errors.is_empty() {
            return Err(ApiError::invalid("meta.k8s.io", kind, "", errors));
        }
        let mut raw = json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"});
        for key in ["fieldManager", "fieldValidation"] {
            if let Some(value) = query.get(key) {
                raw[key] = value.into();
            }
        }
        if !dry_run.is_empty() {
            raw["dryRun"] = json!(dry_run);
        }
        if query.has("force") {
            raw["force"] = query.flag("force").into();
        }
        let manager = if manager.is_empty() { default_manager(user_agent) } else { manager.to_owned() };
        Ok(Self { dry_run: !dry_run.is_empty(), manager, field_validation, force: query.flag("force"), raw })
    }
}

/// Go's definition of printable characters: the only printable space is U+0020.
fn is_printable(c: char) -> bool {
    c == ' ' || !(c.is_control() || c.is_whitespace() || matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{feff}'))
}

/// The default field manager: the user agent up to its first slash, printable and at most 128 bytes.
fn default_manager(user_agent: &str) -> String {
    let name: String = user_agent.split('/').next().unwrap_or_default().chars().filter(|c| is_printable(*c)).collect();
    let end = name.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= 128).last();
    match end {
        Some(end) => name[..end].to_owned(),
        None => "unknown".to_owned(),
    }
}

fn check_dry_run(values: &[String]) -> Option<FieldError> {
    if values.iter().all(|v| v == "All") {
        return None;
    }
    Some(FieldError::not_supported_sorted("dryRun", &json!(values), &["All"]))
}

/// Options of a watch that request events in addition to changes.
#[derive(Debug, Clone, Copy, Default)]
pub struct WatchOptions {
    pub allows_bookmarks: bool,
    pub send_initial_events: Option<bool>,
}

/// Options of get and list; `watch` of a collection shares them.
#[derive(Debug, Clone, Default)]
pub struct ListOptions {
    pub labels: Selector,
    pub fields: FieldSelector,
    pub limit: usize,
    pub continue_token: Option<String>,
    pub resource_version: String,
    pub version_match: String,
    pub watch: bool,
    pub watch_options: WatchOptions,
    pub timeout: Option<Duration>,
}

impl ListOptions {
    pub fn parse(query: &Query) -> ApiResult<Self> {
        let parsed = list_options::ListOptions::parse(|name| query.first(name));
        let parsed = parsed.map_err(|error| ApiError::bad_request(error.to_string()))?;
        let bad_request = |error: SelectorError| ApiError::bad_request(error.to_string());
        let options = Self {
            labels: Selector::parse(&parsed.label_selector).map_err(bad_request)?,
            fields: FieldSelector::parse(&parsed.field_selector).map_err(bad_request)?,
            limit: parsed.page_size().unwrap_or_default(),
            continue_token: Some(parsed.continue_token.clone()).filter(|token| !token.is_empty()),
            resource_version: parsed.resource_version.clone(),
            version_match: parsed.resource_version_match.clone(),
            watch: parsed.watch,
            watch_options: WatchOptions {
                allows_bookmarks: parsed.allow_watch_bookmarks,
                send_initial_events: parsed.send_initial_events,
            },
            timeout: u64::try_from(parsed.timeout_seconds).ok().filter(|t| *t > 0).map(Duration::from_secs),
        };
        let errors = parsed.validate(true);
        if errors.is_empty() { Ok(options) } else { Err(ApiError::invalid("meta.k8s.io", "ListOptions", "", errors)) }
    }

    /// The options of a list, a watch or the deletion of a collection. If the request was authorized for one name, from the
    /// path or from its field selector, the options select that name only. As in kube-apiserver, a field selector that does
    /// not require the name is a bad request.
    pub fn from_request(info: &RequestInfo, query: &Query) -> ApiResult<Self> {
        let mut options = Self::parse(query)?;
        if info.name.is_empty() {
            return Ok(options);
        }
        let name = FieldRequirement { field: "metadata.name".to_owned(), is_equal: true, value: info.name.clone() };
        if options.fields.is_empty() {
            options.fields = FieldSelector::from_iter([name]);
        } else if !options.fields.requirements().contains(&name) {
            return Err(ApiError::bad_request("fieldSelector metadata.name doesn't match requested name"));
        }
        Ok(options)
    }

    /// True if neither selector excludes an object.
    pub fn selects_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }
}

/// Deletion of dependents: `propagationPolicy` of DeleteOptions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PropagationPolicy {
    Orphan,
    Background,
    Foreground,
}

/// `metav1.Preconditions`: values that an object must have for its deletion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Preconditions {
    pub uid: Option<String>,
    pub resource_version: Option<String>,
}

impl Preconditions {
    /// Requires that the object has this uid, so that a later object of the same name is not deleted.
    pub fn for_uid(uid: &str) -> Self {
        Self { uid: Some(uid.to_owned()), resource_version: None }
    }

    /// True if no value is required.
    pub fn is_empty(&self) -> bool {
        self.uid.is_none() && self.resource_version.is_none()
    }
}

/// Fields of DeleteOptions that determine what happens to dependents. A request has at most one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DependentsPolicy {
    Propagation(PropagationPolicy),
    /// The deprecated `orphanDependents`.
    Orphan(bool),
}

/// `metav1.DeleteOptions`.
#[derive(Debug, Clone, Default)]
pub struct DeleteOptions {
    pub grace_period_seconds: Option<i64>,
    pub preconditions: Preconditions,
    pub dependents: Option<DependentsPolicy>,
    pub dry_run: bool,
    /// The options as an object, for admission.
    pub raw: Value,
}

impl DeleteOptions {
    /// Parses the options of a deletion from the parsed request body or, without a body, from the query.
    pub fn parse(body: Option<Value>, query: &Query) -> ApiResult<Self> {
        let from_body = body.is_some();
        let mut raw = body.unwrap_or_else(|| json!({}));
        if !from_body {
            if let Some(grace) =
                query.integer("gracePeriodSeconds").map_err(|error| ApiError::bad_request(error.to_string()))?
            {
                raw["gracePeriodSeconds"] = grace.into();
            }
            if let Some(policy) = query.get("propagationPolicy") {
                raw["propagationPolicy"] = policy.into();
            }
            if query.has("orphanDependents") {
                raw["orphanDependents"] = query.flag("orphanDependents").into();
            }
            if query.has("dryRun") {
                raw["dryRun"] = json!(query.all("dryRun").collect::<Vec<_>>());
            }
        }
        let dry_run: Vec<String> =
            raw["dryRun"].as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect();
        let mut errors = Vec::new();
        let policy = raw["propagationPolicy"].as_str();
        let orphan_dependents = raw["orphanDependents"].as_bool();
        if policy.is_some() && orphan_dependents.is_some() {
            let text = "orphanDependents and deletionPropagation cannot be both set";
            errors.push(FieldError::invalid("propagationPolicy", &raw["propagationPolicy"], text));
        }
        let propagation = match policy {
            None => None,
            Some("Orphan") => Some(DependentsPolicy::Propagation(PropagationPolicy::Orphan)),
            Some("Background") => Some(DependentsPolicy::Propagation(PropagationPolicy::Background)),
            Some("Foreground") => Some(DependentsPolicy::Propagation(PropagationPolicy::Foreground)),
            Some(other) => {
                let mut error = FieldError::not_supported_sorted("propagationPolicy", &json!(other), &[]);
                error.detail = "supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\"".into();
                errors.push(error);
                None
            }
        };
        errors.extend(check_dry_run(&dry_run));
        let grace_period_seconds = raw["gracePeriodSeconds"].as_i64();
        if !errors.is_empty() {
            return Err(ApiError::invalid("meta.k8s.io", "DeleteOptions", "", errors));
        }
        raw["kind"] = "DeleteOptions".into();
        raw["apiVersion"] = "meta.k8s.io/v1".into();
        let precondition = |key: &str| raw["preconditions"][key].as_str().map(str::to_owned);
        Ok(Self {
            grace_period_seconds,
            preconditions: Preconditions {
                uid: precondition("uid"),
                resource_version: precondition("resourceVersion"),
            },
            dependents: propagation.or(orphan_dependents.map(DependentsPolicy::Orphan)),
            dry_run: !dry_run.is_empty(),
            raw: raw.clone(),
        })
    }
}
