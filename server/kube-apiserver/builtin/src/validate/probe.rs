//! Validation of a container's probes and lifecycle handlers. Has no side effects.

use super::{Errors, Value, at, is_set, is_unset, items, json, number, text, validate_port};

/// Validates lifecycle handlers and probes; `grace` is `terminationGracePeriodSeconds`, the upper limit of a sleep.
pub(super) fn validate_handlers(e: &mut Errors, container: &Value, grace: Option<i64>, path: &str) {
    for name in ["postStart", "preStop"] {
        let handler = at(container, &format!("lifecycle.{name}"));
        if !handler.is_null() {
            validate_handler_action(e, handler, grace, &format!("{path}.lifecycle.{name}"));
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let probe = at(container, name);
        if !probe.is_null() {
            validate_probe(e, name, probe, grace, &format!("{path}.{name}"));
        }
    }
}

fn validate_probe(e: &mut Errors, name: &str, probe: &Value, grace: Option<i64>, path: &str) {
    validate_handler_action(e, probe, grace, path);
    for field in ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"] {
        e.non_negative(format!("{path}.{field}"), at(probe, field));
    }
    let grace_period = number(probe, "terminationGracePeriodSeconds");
    let grace_period_path = format!("{path}.terminationGracePeriodSeconds");
    if let Some(seconds) = grace_period.filter(|n| *n <= 0) {
        e.invalid(&grace_period_path, &json!(seconds), "must be greater than 0");
    }
    if name == "readinessProbe" {
        if let Some(seconds) = grace_period {
            e.invalid(grace_period_path, &json!(seconds), "must not be set for readinessProbes");
        }
    } else if number(probe, "successThreshold").unwrap_or(1) != 1 {
        e.invalid(format!("{path}.successThreshold"), at(probe, "successThreshold"), "must be 1");
    }
}

fn validate_handler_action(e: &mut Errors, handler: &Value, grace: Option<i64>, path: &str) {
    let mut has_handler = false;
    for kind in ["exec", "httpGet", "tcpSocket", "grpc", "sleep"] {
        if !is_set(handler, kind) {
            continue;
        }
        let (handler_path, source) = (format!("{path}.{kind}"), at(handler, kind));
        if has_handler {
            e.forbidden(handler_path, "may not specify more than 1 handler type");
            continue;
        }
        has_handler = true;
        match kind {
            "exec" if items(source, "command").is_empty() => e.required(format!("{handler_path}.command"), ""),
            "httpGet" => validate_http_get(e, source, &handler_path),
            "tcpSocket" | "grpc" => validate_port(e, &format!("{handler_path}.port"), at(source, "port")),
            "sleep" => {
                let seconds = number(source, "seconds").unwrap_or(0);
                if let Some(grace) = grace.filter(|grace| seconds < 0 || seconds > *grace) {
                    let reason = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
                    e.invalid(handler_path, &json!(seconds), reason);
                }
            }
            _ => {}
        }
    }
    if !has_handler {
        e.required(path, "must specify a handler type");
    }
}

fn validate_http_get(e: &mut Errors, get: &Value, path: &str) {
    const HEADER: &str = "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')";
    if is_unset(get, "path") {
        e.required(format!("{path}.path"), "");
    }
    validate_port(e, &format!("{path}.port"), at(get, "port"));
    if !matches!(text(get, "scheme"), "HTTP" | "HTTPS") {
        e.unsupported(format!("{path}.scheme"), at(get, "scheme"), &["HTTP", "HTTPS"]);
    }
    for header in items(get, "httpHeaders") {
        let name = text(header, "name");
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
            e.invalid(format!("{path}.httpHeaders"), &json!(name), HEADER);
        }
    }
}
