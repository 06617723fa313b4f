//! Validation of pod-level settings: security context, operating system, DNS and resource claims. Has no side
//! effects.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::Regex;

use super::container;
use super::{
    Errors, Value, addresses, at, flag, go, is_set, items, json, number, text, validate_dns1123_label,
    validate_dns1123_subdomain,
};

/// Pattern of sysctl names as kube-apiserver prints it.
const SYSCTL: &str = "^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
const UNDERSCORED_SUBDOMAIN: &str = "[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*";

static SYSCTL_NAME: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(SYSCTL).ok());
static UNDERSCORED_SUBDOMAIN_REGEX: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(&format!("^{UNDERSCORED_SUBDOMAIN}$")).ok());

fn matches(pattern: &Option<Regex>, text: &str) -> bool {
    pattern.as_ref().is_none_or(|pattern| pattern.is_match(text))
}

pub(super) fn validate_pod_security_context(e: &mut Errors, spec: &Value, path: &str) {
    let (context, path) = (at(spec, "securityContext"), format!("{path}.securityContext"));
    let validate_id = |e: &mut Errors, field: String, id: &Value| {
        if id.as_i64().is_some_and(|id| !(0..=i64::from(i32::MAX)).contains(&id)) {
            e.invalid(field, id, "must be between 0 and 2147483647, inclusive");
        }
    };
    for field in ["fsGroup", "runAsUser", "runAsGroup"] {
        validate_id(e, format!("{path}.{field}"), at(context, field));
    }
    for (index, group) in items(context, "supplementalGroups").iter().enumerate() {
        validate_id(e, format!("{path}.supplementalGroups[{index}]"), group);
    }
    if flag(spec, "hostPID") && flag(spec, "shareProcessNamespace") {
        let reason = "ShareProcessNamespace and HostPID cannot both be enabled";
        e.invalid(format!("{path}.shareProcessNamespace"), &json!(true), reason);
    }
    validate_sysctls(e, spec, &path);
    let require_one_of = |e: &mut Errors, field: &str, supported: &[&str]| {
        let value = at(context, field);
        if !value.is_null() && !supported.iter().any(|name| value == name) {
            e.unsupported(format!("{path}.{field}"), value, supported);
        }
    };
    require_one_of(e, "fsGroupChangePolicy", &["Always", "OnRootMismatch"]);
    container::validate_seccomp_profile(e, at(context, "seccompProfile"), &format!("{path}.seccompProfile"));
    super::windows::validate_windows_options(e, context, &path);
    container::validate_app_armor_profile(e, at(context, "appArmorProfile"), &format!("{path}.appArmorProfile"));
    require_one_of(e, "supplementalGroupsPolicy", &["Merge", "Strict"]);
    require_one_of(e, "seLinuxChangePolicy", &["Recursive"]);
}

/// The kernel namespace of a sysctl; empty if it has none.
fn kernel_namespace(name: &str) -> &'static str {
    let dotted = name.replace('/', ".");
    let ipc = ["kernel.sem", "kernel.shmall", "kernel.shmmax", "kernel.shmmni", "kernel.shm_rmid_forced"];
    if ipc.contains(&dotted.as_str()) || dotted.starts_with("kernel.msg") || dotted.starts_with("fs.mqueue.") {
        "ipc"
    } else if dotted.starts_with("net.") {
        "net"
    } else {
        ""
    }
}

fn validate_sysctls(e: &mut Errors, spec: &Value, path: &str) {
    let mut seen = BTreeSet::new();
    for (index, sysctl) in items(spec, "securityContext.sysctls").iter().enumerate() {
        let (name, field) = (text(sysctl, "name"), format!("{path}.sysctls[{index}].name"));
        if name.is_empty() {
            e.required(&field, "");
        } else if name.len() > 253 || !matches(&SYSCTL_NAME, name) {
            e.invalid(&field, &json!(name), format!("must have at most 253 characters and match regex {SYSCTL}"));
        } else if seen.contains(name) {
            e.duplicate(&field, &json!(name));
        }
        match kernel_namespace(name) {
            "net" if flag(spec, "hostNetwork") => {
                e.invalid(field, &json!(name), "may not be specified when 'hostNetwork' is true");
            }
            "ipc" if flag(spec, "hostIPC") => {
                e.invalid(field, &json!(name), "may not be specified when 'hostIPC' is true");
            }
            _ => {}
        }
        seen.insert(name);
    }
}

pub(super) fn validate_dns_config(e: &mut Errors, spec: &Value, path: &str) {
    let (config, path) = (at(spec, "dnsConfig"), format!("{path}.dnsConfig"));
    let (servers, searches) = (items(config, "nameservers"), items(config, "searches"));
    if text(spec, "dnsPolicy") == "None" {
        if config.is_null() {
            return e.required(path, "must provide `dnsConfig` when `dnsPolicy` is None");
        }
        if servers.is_empty() {
            let reason = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            return e.required(format!("{path}.nameservers"), reason);
        }
    }
    if servers.len() > 3 {
        e.invalid(format!("{path}.nameservers"), &json!(servers), "must not have more than 3 nameservers");
    }
    for (index, address) in servers.iter().enumerate() {
        addresses::validate_legacy_address(e, &format!("{path}.nameservers[{index}]"), address);
    }
    if searches.len() > 32 {
        e.invalid(format!("{path}.searches"), &json!(searches), "must not have more than 32 search paths");
    }
    // The limit applies to the joined search paths. A separator after the last one is counted too.
    let length: usize = searches.iter().map(|search| search.as_str().map_or(0, str::len) + 1).sum();
    if length > 2049 {
        let reason = "must not have more than 2048 characters (including spaces) in the search list";
        e.invalid(format!("{path}.searches"), &json!(searches), reason);
    }
    for (index, search) in searches.iter().filter_map(Value::as_str).enumerate().filter(|(_, s)| *s != ".") {
        let search = search.strip_suffix('.').unwrap_or(search);
        e.push_name_errors(&format!("{path}.searches[{index}]"), search, underscored_subdomain_errors(search));
    }
    for (index, option) in items(config, "options").iter().enumerate() {
        if text(option, "name").is_empty() {
            e.required(format!("{path}.options[{index}]"), "must not be empty");
        }
    }
}

/// `IsDNS1123SubdomainWithUnderscore`.
fn underscored_subdomain_errors(name: &str) -> Vec<String> {
    let mut reasons = Vec::new();
    if name.len() > 253 {
        reasons.push("must be no more than 253 characters".to_owned());
    }
    if !matches(&UNDERSCORED_SUBDOMAIN_REGEX, name) {
        reasons.push(format!("a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{UNDERSCORED_SUBDOMAIN}')"));
    }
    reasons
}

pub(super) fn validate_host_aliases(e: &mut Errors, spec: &Value, path: &str) {
    for (index, alias) in items(spec, "hostAliases").iter().enumerate() {
        let path = format!("{path}.hostAliases[{index}]");
        addresses::validate_legacy_address(e, &format!("{path}.ip"), at(alias, "ip"));
        for (index, name) in items(alias, "hostnames").iter().enumerate() {
            let name = name.as_str().unwrap_or_default();
            e.push_name_errors(&format!("{path}.hostnames[{index}]"), name, validate_dns1123_subdomain(name));
        }
    }
}

/// In the host network, container ports must equal host ports.
pub(super) fn validate_host_network(e: &mut Errors, spec: &Value, is_pod: bool, path: &str) {
    if !flag(spec, "hostNetwork") {
        return;
    }
    for (c, container) in items(spec, "containers").iter().enumerate() {
        for (p, port) in items(container, "ports").iter().enumerate() {
            let host = number(port, "hostPort").unwrap_or(0);
            if (is_pod || host != 0) && host != number(port, "containerPort").unwrap_or(0) {
                let field = format!("{path}.containers[{c}].ports[{p}].hostPort");
                e.invalid(field, &json!(host), "must match `containerPort` when `hostNetwork` is true");
            }
        }
    }
}

pub(super) fn validate_host_users(e: &mut Errors, spec: &Value, path: &str) {
    if at(spec, "hostUsers") != false {
        return;
    }
    for (field, reported_field) in [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")] {
        if flag(spec, field) {
            e.forbidden(format!("{path}.{reported_field}"), "when `pod.Spec.HostUsers` is false");
        }
    }
}

pub(super) fn validate_resource_claims(e: &mut Errors, spec: &Value, path: &str) {
    let mut seen = BTreeSet::new();
    for (index, claim) in items(spec, "resourceClaims").iter().enumerate() {
        let (path, name) = (format!("{path}.resourceClaims[{index}]"), text(claim, "name"));
        if name.is_empty() {
            e.required(format!("{path}.name"), "");
        } else if !seen.insert(name) {
            e.duplicate(format!("{path}.name"), &json!(name));
        } else {
            e.push_name_errors(&format!("{path}.name"), name, validate_dns1123_label(name));
        }
        let reason = match (is_set(claim, "resourceClaimName"), is_set(claim, "resourceClaimTemplateName")) {
            (true, true) => Some("at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"),
            (false, false) => Some("must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"),
            _ => None,
        };
        if let Some(reason) = reason {
            e.push(go::invalid_struct(&path, claim, "core.PodResourceClaim", reason));
        }
        for field in ["resourceClaimName", "resourceClaimTemplateName"] {
            if let Some(name) = at(claim, field).as_str() {
                e.push_name_errors(&format!("{path}.{field}"), name, validate_dns1123_subdomain(name));
            }
        }
    }
}

/// Validates `spec.os` and fields that do not apply to the operating system.
pub(super) fn validate_os(e: &mut Errors, spec: &Value, path: &str) {
    if !is_set(spec, "os") {
        return;
    }
    let inapplicable_fields: &[&str] = match text(spec, "os.name") {
        "" => return e.required(format!("{path}.os.name"), "cannot be empty"),
        "linux" => &["windowsOptions"],
        "windows" => &[
            "appArmorProfile",
            "seLinuxOptions",
            "seccompProfile",
            "fsGroup",
            "fsGroupChangePolicy",
            "sysctls",
            "runAsUser",
            "runAsGroup",
            "supplementalGroups",
            "supplementalGroupsPolicy",
            "seLinuxChangePolicy",
            "capabilities",
            "readOnlyRootFilesystem",
            "privileged",
            "allowPrivilegeEscalation",
            "procMount",
        ],
        other => return e.unsupported(format!("{path}.os"), &json!(other), &["linux", "windows"]),
    };
    let is_windows = text(spec, "os.name") == "windows";
    let reason =
        if is_windows { "cannot be set for a windows pod" } else { "windows options cannot be set for a linux pod" };
    let forbid_fields = |e: &mut Errors, owner: &Value, path: String| {
        for field in inapplicable_fields.iter().filter(|field| is_set(owner, &format!("securityContext.{field}"))) {
            e.forbidden(format!("{path}.securityContext.{field}"), reason);
        }
    };
    if is_windows {
        for field in ["hostUsers", "hostPID", "hostIPC", "shareProcessNamespace"] {
            if is_set(spec, field) && at(spec, field) != false {
                e.forbidden(format!("{path}.{field}"), reason);
            }
        }
    }
    forbid_fields(e, spec, path.to_owned());
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for (index, container) in items(spec, list).iter().enumerate() {
            forbid_fields(e, container, format!("{path}.{list}[{index}]"));
        }
    }
}
